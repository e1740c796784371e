"""``moldau quorum``."""

from collections.abc import Iterator
from typing import Any

from moldau.cli.app import new_app
from moldau.cli.options import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    ControllerOption,
    JsonOption,
    TimeoutOption,
)
from moldau.cli.output import print_json, print_table, time_text
from moldau.client.cluster import with_client
from moldau.client.quorum import describe_quorum
from moldau.cluster.folders.meta_properties import encode_uuid
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    ReplicaState,
)

app = new_app(help="See the quorum of controllers.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep ``describe`` a command of its own, though it is the only one."""


@app.command("describe")
def describe(
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    bootstrap_controller: ControllerOption = None,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Show the leader of the metadata quorum, and how far its voters and observers are.

    Brokers are observers. The lag is in records; the leader itself fetches from nobody.

    \b
    Example:
      moldau quorum describe --json
    """
    answer = with_client(
        bootstrap_controller or bootstrap,
        timeout_s,
        lambda client: describe_quorum(client, through_controllers=bootstrap_controller is not None),
    )
    quorum = answer.topics[0].partitions[0]
    replicas = list(_replicas(answer, quorum))
    if as_json:
        print_json(
            {
                "leader_id": quorum.leader_id,
                "leader_epoch": quorum.leader_epoch,
                "high_watermark": quorum.high_watermark,
                "voters": [row for row in replicas if row["role"] != "observer"],
                "observers": [row for row in replicas if row["role"] == "observer"],
            }
        )
        return
    print(f"leader {quorum.leader_id}, epoch {quorum.leader_epoch}, high watermark {quorum.high_watermark}\n")
    print_table(
        ("Node", "Role", "Address", "Log end", "Lag", "Last fetch", "Last caught up"),
        [
            (
                row["node_id"],
                row["role"],
                row["address"],
                row["log_end_offset"],
                row["lag"],
                time_text(row["last_fetch_timestamp_ms"]),
                time_text(row["last_caught_up_timestamp_ms"]),
            )
            for row in replicas
        ],
    )


def _replicas(
    answer: DescribeQuorumResponse, quorum: DescribeQuorumResponsePartitionData
) -> Iterator[dict[str, Any]]:
    addresses = {
        node.node_id: f"{listener.host}:{listener.port}"
        for node in answer.nodes
        for listener in node.listeners[:1]
    }
    end_offset = max((row.log_end_offset for row in quorum.current_voters), default=0)

    def described(row: ReplicaState, role: str) -> dict[str, Any]:
        known = row.log_end_offset >= 0
        return {
            "node_id": row.replica_id,
            "directory_id": encode_uuid(row.replica_directory_id),
            "role": role,
            "address": addresses.get(row.replica_id),
            "log_end_offset": row.log_end_offset if known else None,
            "lag": end_offset - row.log_end_offset if known else None,
            "last_fetch_timestamp_ms": row.last_fetch_timestamp,
            "last_caught_up_timestamp_ms": row.last_caught_up_timestamp,
        }

    for voter in sorted(quorum.current_voters, key=lambda row: row.replica_id):
        yield described(voter, "leader" if voter.replica_id == quorum.leader_id else "voter")
    for observer in sorted(quorum.observers, key=lambda row: row.replica_id):
        yield described(observer, "observer")
