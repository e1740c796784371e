"""Options of the commands that run a node."""

import enum
from typing import Annotated

import typer


class LogLevel(enum.StrEnum):
    """The log level of a node."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one Kafka property; may be repeated."),
]
LevelOption = Annotated[LogLevel, typer.Option("--log-level", help="Level of the log on stderr.")]
