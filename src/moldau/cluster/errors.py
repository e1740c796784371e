"""Errors of the metadata itself, as opposed to errors that answer a request."""


class MetadataError(Exception):
    """A record contradicts what was replayed before it, so the log cannot be followed any further.

    One sentence for the operator; a node that meets this must stop rather than guess.
    """
