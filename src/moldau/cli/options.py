"""Options that several commands have, and the conversion of their values."""

import datetime
import sys
from typing import Annotated

import typer

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
MILLISECONDS_IN_S = 1000

BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        envvar="MOLDAU_BOOTSTRAP",
        help="A node of the cluster. Separate several nodes with commas.",
    ),
]
ControllerOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-controller",
        metavar="HOST:PORT",
        help="A controller that is asked instead of a broker. Separate several controllers with commas.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long to wait for an answer.")
]
ConfigsOption = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic config; may be repeated."),
]


def key_values(given: list[str] | None, option: str) -> dict[str, str]:
    """``KEY=VALUE`` arguments as a mapping. A usage error names the invalid argument."""
    found: dict[str, str] = {}
    for argument in given or ():
        key, equals, value = argument.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{argument!r} is not KEY=VALUE", param_hint=option)
        found[key.strip()] = value.strip()
    return found


def timestamp_ms(text: str, option: str) -> int:
    """Milliseconds since the epoch, from a number of milliseconds or from ISO 8601 (local time if it names
    no time zone).
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        reason = f"{text!r} is neither milliseconds since 1970 nor a time like 2031-05-17T08:30:00Z"
        raise typer.BadParameter(reason, param_hint=option) from None
    return round(moment.timestamp() * MILLISECONDS_IN_S)


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation on a terminal, unless ``--yes`` is given. There is no question if the command runs
    in a script."""
    if not yes and sys.stdin.isatty() and not typer.confirm(question):
        raise typer.Exit(1)
