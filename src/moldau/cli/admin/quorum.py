"""``moldau quorum``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

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
from moldau.cli.output import print_json, print_table, time_text
from moldau.client.cluster import with_client
from moldau.client.quorum import change_voters, describe_quorum
from moldau.cluster.folders.meta_properties import (
    FormatError,
    decode_uuid,
    encode_uuid,
    read_meta_properties,
)
from moldau.config.broker import BrokerConfig
from moldau.config.definition import ConfigError
from moldau.config.properties import parse_properties
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, Listener
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    ReplicaState,
)
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from moldau.runtime.files.local_disk import LocalDisk
from moldau.server.metadata.membership import controller_endpoints

app = new_app(no_args_is_help=True)


@app.command("describe")
def describe(
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    bootstrap_controller: ControllerOption = None,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Show the leader of the metadata quorum, and the progress of its voters and observers.

    Brokers are observers. The lag is a number of records. The leader itself does not fetch.

    \b
    Example:
      moldau quorum describe --json
    """
    answer = _describe(bootstrap, bootstrap_controller, timeout_s)
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


@app.command("add")
def add(
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", help="The new voter's properties file.")
    ],
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    bootstrap_controller: ControllerOption = None,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Make a running controller a voter (KIP-853). Its id, directory and address are read from its files.

    Run this command on the machine of that controller, after the controller has become an observer.

    \b
    Example:
      moldau quorum add --config controller.properties --bootstrap-controller HOST:9093
    """
    try:
        broker = BrokerConfig.from_properties(parse_properties(config.read_text()), {})
        properties = read_meta_properties(LocalDisk(), broker.metadata_log_dir)
    except (OSError, ConfigError, FormatError) as error:
        raise CommandError(f"{config}: {error}") from error
    endpoints = controller_endpoints(broker)
    if not endpoints:
        raise CommandError(f"{config} is not the file of a controller")
    if properties is None or properties.directory_id is None:
        raise CommandError(f"{broker.metadata_log_dir} is not formatted")
    request = AddRaftVoterRequest(
        cluster_id=properties.cluster_id,
        timeout_ms=int(timeout_s * 1000),
        voter_id=broker.node_id,
        voter_directory_id=properties.directory_id,
        listeners=[Listener(name=each.name, host=each.host, port=each.port) for each in endpoints],
    )
    _change(request, bootstrap, bootstrap_controller, timeout_s)
    print(f"node {broker.node_id} is a voter")


@app.command("remove")
def remove(
    node_id: Annotated[int, typer.Option("--node", metavar="ID", help="Id of the voter.")],
    directory_id: Annotated[
        str | None,
        typer.Option(
            "--directory", metavar="ID", help="Directory id of the voter; by default its current one."
        ),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    bootstrap_controller: ControllerOption = None,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Remove a controller from the voters (KIP-853); it continues as an observer, or may be stopped.

    \b
    Example:
      moldau quorum remove --node 3
    """
    if directory_id is None:
        answer = _describe(bootstrap, bootstrap_controller, timeout_s)
        voters = {
            row.replica_id: row.replica_directory_id for row in answer.topics[0].partitions[0].current_voters
        }
        if node_id not in voters:
            raise CommandError(f"node {node_id} is not a voter; the voters are {sorted(voters)}")
        directory = voters[node_id]
    else:
        try:
            directory = decode_uuid(directory_id)
        except ValueError as error:
            raise CommandError(f"directory id {error}") from error
    request = RemoveRaftVoterRequest(cluster_id=None, voter_id=node_id, voter_directory_id=directory)
    _change(request, bootstrap, bootstrap_controller, timeout_s)
    print(f"node {node_id} is no longer a voter")


def _describe(bootstrap: str, bootstrap_controller: str | None, timeout_s: float) -> DescribeQuorumResponse:
    return with_client(
        bootstrap_controller or bootstrap,
        timeout_s,
        lambda client: describe_quorum(client, through_controllers=bootstrap_controller is not None),
    )


def _change(
    request: AddRaftVoterRequest | RemoveRaftVoterRequest,
    bootstrap: str,
    bootstrap_controller: str | None,
    timeout_s: float,
) -> None:
    with_client(
        bootstrap_controller or bootstrap,
        timeout_s,
        lambda client: change_voters(client, request, through_controllers=bootstrap_controller is not None),
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
