"""``moldau configs``."""

import enum
from typing import Annotated, Any

import typer

from moldau.cli.admin.resource_configs import (
    SOURCE_DEFAULT,
    SOURCES,
    describe_configs,
    list_resources,
    set_configs,
)
from moldau.cli.app import new_app
from moldau.cli.options import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, TimeoutOption, key_values
from moldau.cli.output import print_json, print_table
from moldau.client.cluster import Client, with_client
from moldau.protocol.messages.describe_configs import DescribeConfigsResourceResult

app = new_app(no_args_is_help=True)


class Kind(enum.StrEnum):
    """Kinds of resources with configs."""

    TOPIC = "topic"
    BROKER = "broker"
    BROKER_LOGGER = "broker-logger"
    CLIENT_METRICS = "client-metrics"
    GROUP = "group"


KindArgument = Annotated[Kind, typer.Argument(help="Kind of the resource.")]
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of a topic, group or subscription; id of a broker; or 'default' for all brokers.",
    ),
]
DEFAULT_BROKER = "default"


def _resource_name(kind: Kind, name: str) -> str:
    return "" if kind is Kind.BROKER and name == DEFAULT_BROKER else name


@app.command("list")
def list_(
    kind: Annotated[Kind | None, typer.Argument(help="Only resources of this kind.")] = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """List all resources. Groups and client metrics are listed only if they have configs of their own.

    \b
    Example:
      moldau configs list client-metrics
    """

    async def work(client: Client) -> list[tuple[str, str]]:
        return await list_resources(client, kind)

    found = with_client(bootstrap, timeout_s, work)
    if as_json:
        print_json([{"kind": each, "name": name} for each, name in found])
        return
    print_table(["Kind", "Name"], [list(row) for row in found])


@app.command("describe")
def describe(
    kind: KindArgument,
    name: NameArgument,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also show defaults, not only values that were set.")
    ] = False,
    synonyms: Annotated[
        bool, typer.Option("--synonyms", help="Also show the values that apply if a value is removed.")
    ] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Show the configs of one resource, and the sources of their values.

    \b
    Example:
      moldau configs describe topic orders --all
      moldau configs describe broker-logger 1
    """
    resource = _resource_name(kind, name)

    async def work(client: Client) -> list[DescribeConfigsResourceResult]:
        found = await describe_configs(client, kind, [resource], synonyms=synonyms, docs=as_json)
        return [row for row in found[resource] if everything or row.config_source != SOURCE_DEFAULT]

    rows = with_client(bootstrap, timeout_s, work)
    if as_json:
        print_json([_fields(row) for row in rows])
        return
    columns = ["Config", "Value", "Source"] + ["Synonyms"] * synonyms
    print_table(
        columns,
        [[row.name, _shown(row), _source(row.config_source), *_synonyms(row, synonyms)] for row in rows],
    )


def _source(number: int) -> str:
    return SOURCES.get(number, str(number))


def _shown(row: DescribeConfigsResourceResult) -> str | None:
    return "(secret)" if row.is_sensitive else row.value


def _synonyms(row: DescribeConfigsResourceResult, wanted: bool) -> list[str]:
    if not wanted:
        return []
    return [", ".join(f"{each.name}={each.value} ({_source(each.source)})" for each in row.synonyms)]


def _fields(row: DescribeConfigsResourceResult) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": row.name,
        "value": row.value,
        "source": _source(row.config_source),
        "read_only": row.read_only,
        "sensitive": row.is_sensitive,
        "documentation": row.documentation or None,
    }
    if row.synonyms:
        fields["synonyms"] = [
            {"name": each.name, "value": each.value, "source": _source(each.source)} for each in row.synonyms
        ]
    return fields


@app.command("alter")
def alter(
    kind: KindArgument,
    name: NameArgument,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a config; may be repeated."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="Reset a config to its default; may be repeated."),
    ] = None,
    append: Annotated[
        list[str] | None,
        typer.Option("--append", metavar="KEY=VALUE", help="Add a value to a list; may be repeated."),
    ] = None,
    subtract: Annotated[
        list[str] | None,
        typer.Option("--subtract", metavar="KEY=VALUE", help="Remove a value from a list; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check the request, and change nothing.")
    ] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Change configs; configs that are not named stay unchanged.

    A logger's level lasts until the broker stops; the levels are FATAL, ERROR, WARN, INFO, DEBUG and TRACE.

    \b
    Example:
      moldau configs alter topic orders --set retention.ms=3600000 --unset cleanup.policy
      moldau configs alter broker-logger 1 --set moldau.network=DEBUG
    """
    if not (changes or unset or append or subtract):
        raise typer.BadParameter("nothing to change: give --set, --unset, --append or --subtract")
    values = key_values(changes, "--set")
    appended, subtracted = key_values(append, "--append"), key_values(subtract, "--subtract")
    resource = _resource_name(kind, name)

    async def work(client: Client) -> None:
        await set_configs(
            client,
            kind,
            resource,
            values,
            unset or [],
            append=appended,
            subtract=subtracted,
            validate_only=dry_run,
        )

    with_client(bootstrap, timeout_s, work)
    print(f"{'checked' if dry_run else 'changed'} {kind} {name}")
