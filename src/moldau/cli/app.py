"""The commands by name. A command's module is imported only when the command is run."""

import importlib
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import moldau

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "dev": ("serving.dev", "Run a ready-to-use node with no configuration file."),
    "node": ("serving.node", "Run a node as its configuration file says."),
    "storage": ("storage.command", "Make the folders of nodes ready; save and restore a cluster."),
    "topics": ("admin.topics", "List, create, describe, change and delete topics."),
    "produce": ("records.produce", "Send records, a line each, from a file or stdin."),
    "consume": ("records.consume", "Print the records of a topic."),
    "groups": ("groups.command", "See consumer groups and their lag; reset their offsets; delete them."),
    "transactions": ("transactions.command", "See transactions; abort one whose producer is gone."),
    "configs": ("admin.configs", "See and change the configuration of topics and brokers."),
    "records": ("records.command", "Delete the oldest records of partitions."),
    "quorum": ("admin.quorum", "See the quorum of controllers."),
    "brokers": ("admin.brokers", "List the brokers and their log directories; move replicas."),
    "cluster": ("admin.cluster", "See the cluster's features."),
    "diskless": ("admin.diskless", "See diskless topics, their objects and their coordinators."),
    "tiered": ("admin.tiered", "See what of topics lies in the remote tier."),
    "chunks": ("admin.chunks", "See partition chunks; begin new ones and move old ones."),
    "dump-log": ("dump.command", "Show what is in the files of a log folder."),
    "pipeline": ("pipeline.command", "Run bulk jobs on Apache Spark: export topics to tables."),
    "completion": ("completion", "Print the script that completes commands in a shell."),
}
"""Each command's name with its module below ``moldau.cli`` and a line of help, so that ``moldau --help``
imports no module.
"""

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
        module = importlib.import_module(f"moldau.cli.{COMMANDS[cmd_name][0]}")
        found = typer.main.get_command(module.app)
        found.name = cmd_name
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


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
