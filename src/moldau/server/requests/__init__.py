"""The path of a request through a node: dispatch, large requests, fetch sessions."""
