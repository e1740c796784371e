"""The whole command line. A command's module is imported only when the command is run."""

import importlib
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import moldau
from moldau.cli.commands import COMMANDS

EPILOGUE: Final = """Try it:

\b
  moldau dev &
  seq 1 5 | moldau produce numbers
  moldau consume numbers

`moldau COMMAND --help` shows an example of each command.
"""


class LazyGroup(TyperGroup):
    """A group that imports a command's module when that command is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"moldau.cli.{COMMANDS[cmd_name].module}")
        found = typer.main.get_command(module.app)
        found.name = cmd_name
        if isinstance(found, TyperGroup):
            found.help = COMMANDS[cmd_name].help
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.help) for name, row in COMMANDS.items()])


app = typer.Typer(
    name="moldau",
    cls=LazyGroup,
    help="Kafka-compatible streaming whose durable store is an object store.",
    epilog=EPILOGUE,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"moldau {moldau.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options that every command has."""


def command() -> Callable[..., Any]:
    """The whole command line, which is called with its arguments. It ends with ``SystemExit``."""
    return typer.main.get_command(app)


def new_app(**settings: Any) -> typer.Typer:
    """A Typer application for a command, or a group of commands, with the settings that all commands
    share.
    """
    return typer.Typer(
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )
