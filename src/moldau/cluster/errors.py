"""Errors of the metadata itself, as opposed to errors that answer a request."""


class MetadataError(Exception):
    """A record contradicts the records before it, so the log cannot be followed any further.

    The message is one sentence for the operator; a node must stop at this error.
    """
