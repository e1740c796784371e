"""The error of a command."""

from moldau.client.errors import ToolError


class CommandError(ToolError):
    """An error that the user of the command can correct. The message is a sentence."""


def one_line(error: BaseException) -> str:
    """An error as one line of text."""
    if isinstance(error, OSError) and error.strerror:
        named = f"{error.filename}: " if error.filename else ""
        return f"{named}{error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
