"""``moldau cluster``."""

from moldau.cli.app import new_app
from moldau.cli.options import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    ControllerOption,
    JsonOption,
    TimeoutOption,
)
from moldau.cli.output import print_json, print_table
from moldau.client.cluster import Client, check, with_client
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

app = new_app(help="See the cluster's features.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep ``features`` a command of its own, though it is the only one."""


@app.command("features")
def features(
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    bootstrap_controller: ControllerOption = None,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Show the level of each feature in the cluster, and the levels that the asked node supports.

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
