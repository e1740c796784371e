"""The declarations of the calls to a diskless coordinator, with one module for each subject."""
