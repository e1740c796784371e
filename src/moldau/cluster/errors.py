"""The error for invalid records in the metadata log. The errors in responses to requests are declared in
other modules."""


class MetadataError(Exception):
    """A record contradicts the records before it, so the log cannot be followed any further.

    The message is one sentence for the operator. A node must stop after this error.
    """
