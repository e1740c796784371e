"""Errors of the metadata themselves; errors that answer a request are elsewhere."""


class MetadataError(Exception):
    """A record contradicts the records before it, so the log cannot be followed any further.

    The message is one sentence for the operator. A node must stop at this error.
    """
