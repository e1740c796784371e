"""The error of a tool."""


class ToolError(Exception):
    """An error that the user of a tool can correct. The message is a sentence."""
