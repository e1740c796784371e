"""``moldau completion``."""

import enum
import os
from typing import Annotated, Final

import typer

from moldau.cli.app import command, new_app

app = new_app()

COMPLETE_VARIABLE: Final = "_MOLDAU_COMPLETE"
"""The environment variable that a shell's completion script sets. If it is set, the command line prints the
completions and exits."""


class Shell(enum.StrEnum):
    """Shells that support completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command("completion")
def completion(shell: Annotated[Shell, typer.Argument(help="Shell for the script.")]) -> None:
    """Print the script that completes commands and options in a shell.

    `moldau --install-completion` installs this script for the current shell.

    \b
    Example:
      source <(moldau completion bash)
    """
    os.environ[COMPLETE_VARIABLE] = f"source_{shell.value}"
    try:
        command()([], prog_name="moldau")
    finally:
        del os.environ[COMPLETE_VARIABLE]
