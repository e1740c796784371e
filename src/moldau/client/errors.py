"""The error of a tool."""


class ToolError(Exception):
    """Something that the person who uses a tool can act on, in one sentence."""
