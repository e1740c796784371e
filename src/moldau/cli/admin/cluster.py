"""``moldau cluster``."""

from typing import Annotated

import typer

from moldau.cli.app import new_app
from moldau.cli.errors import CommandError
from moldau.cli.options import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    ControllerOption,
    JsonOption,
    TimeoutOption,
)
from moldau.cli.output import print_json, print_table
from moldau.client.cluster import Client, check, with_client
from moldau.client.quorum import active_controller
from moldau.cluster.decisions.features import UpgradeType
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

app = new_app(no_args_is_help=True)


@app.command("features")
def features(
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    bootstrap_controller: ControllerOption = None,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Show the level of each feature in the cluster, and the levels that the queried node supports.

    \b
    Example:
      moldau cluster features --json
    """

    async def work(client: Client) -> ApiVersionsResponse:
        request = ApiVersionsRequest(client_software_name="moldau", client_software_version="0")
        answer: ApiVersionsResponse = await client.ask(request)
        check(answer.error_code, None, "features")
        return answer

    answer = with_client(bootstrap_controller or bootstrap, timeout_s, work)
    levels = {row.name: row.max_version_level for row in answer.finalized_features}
    ranges = {row.name: (row.min_version, row.max_version) for row in answer.supported_features}
    rows = [(name, levels.get(name, 0), *ranges.get(name, (0, 0))) for name in sorted({*levels, *ranges})]
    if as_json:
        fields = ("name", "level", "supported_min", "supported_max")
        found = [dict(zip(fields, row, strict=True)) for row in rows]
        print_json({"epoch": answer.finalized_features_epoch, "features": found})
        return
    print_table(("Feature", "Level", "Supported min", "Supported max"), rows)


@app.command("upgrade")
def upgrade(
    features: Annotated[
        list[str], typer.Argument(metavar="NAME=LEVEL…", help="Features with their new levels.")
    ],
    downgrade: Annotated[bool, typer.Option("--downgrade", help="Allow lower levels.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check the request, and change nothing.")
    ] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    bootstrap_controller: ControllerOption = None,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Change feature levels: either all of them or none. This is the last step of a rolling upgrade.

    kraft.version=1 makes static voters dynamic (see `moldau quorum`); this change cannot be undone.

    \b
    Example:
      moldau cluster upgrade kraft.version=1
    """
    kind = UpgradeType.SAFE_DOWNGRADE if downgrade else UpgradeType.UPGRADE
    updates = []
    for text in features:
        name, _, level = text.partition("=")
        if not level.isdecimal():
            raise CommandError(f"'{text}' is not of the form NAME=LEVEL")
        updates.append(FeatureUpdateKey(feature=name, max_version_level=int(level), upgrade_type=kind))
    request = UpdateFeaturesRequest(
        timeout_ms=int(timeout_s * 1000), feature_updates=updates, validate_only=dry_run
    )

    async def work(client: Client) -> None:
        leader = await active_controller(client) if bootstrap_controller is not None else None
        answer: UpdateFeaturesResponse = await client.ask(request, broker=leader)
        check(answer.error_code, answer.error_message, "features")

    with_client(bootstrap_controller or bootstrap, timeout_s, work)
    for text in features:
        print(f"{text} is possible" if dry_run else text)
