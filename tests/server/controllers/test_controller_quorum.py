"""Three separate controller processes elect a leader. One of them is killed, and the others continue."""

import asyncio
import contextlib
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from moldau.protocol.messages.vote import VoteRequest, VoteRequestPartitionData, VoteRequestTopicData
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER, CLUSTER_METADATA_TOPIC
from moldau.runtime import ErrorCode, KafkaError, SystemEntropy

CLUSTER_ID = "bW9sZGF1LXF1b3J1bS10ZQ"
MOLDAU = [sys.executable, "-m", "moldau"]
LIMIT_S = 120


class Controller:
    """A ``moldau node`` process that is only a controller."""

    def __init__(self, folder: pathlib.Path, node_id: int, ports: dict[int, int]) -> None:
        self.port = ports[node_id]
        voters = ",".join(f"{each}@127.0.0.1:{port}" for each, port in ports.items())
        self.config = folder / f"controller-{node_id}.properties"
        self.config.write_text(
            "process.roles=controller\n"
            f"node.id={node_id}\n"
            f"controller.quorum.voters={voters}\n"
            "controller.listener.names=CONTROLLER\n"
            f"listeners=CONTROLLER://127.0.0.1:{self.port}\n"
            f"log.dirs={folder}/data-{node_id}\n"
        )
        format_command = ["storage", "format", "--config", str(self.config), "--cluster-id", CLUSTER_ID]
        subprocess.run([*MOLDAU, *format_command], check=True, capture_output=True, timeout=LIMIT_S)
        self.process = self.start()

    def start(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [*MOLDAU, "node", "--config", str(self.config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"ready 127.0.0.1:{self.port}\n"
        return self.process

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def controllers(tmp_path: pathlib.Path, free_port: Callable[[], int]) -> Iterator[dict[int, Controller]]:
    ports = {node_id: free_port() for node_id in (1, 2, 3)}
    started: dict[int, Controller] = {}
    with contextlib.ExitStack() as stack:
        for node_id in ports:
            started[node_id] = Controller(tmp_path, node_id, ports)
            stack.callback(started[node_id].end)
        yield started


def ask(port: int, api_key: ApiKey, request: Any) -> Any:
    async def asking() -> Any:
        client = RpcClient(SystemEntropy())
        try:
            return await client.request("127.0.0.1", port, api_key, None, request, 5_000)
        finally:
            await client.close()

    return asyncio.run(asking())


def leader_of(controllers: list[Controller]) -> tuple[int, int]:
    """Wait for the leader's id and epoch, as the leader itself reports them."""
    partitions = [DescribeQuorumRequestPartitionData(partition_index=0)]
    topic = DescribeQuorumRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=partitions)
    request = DescribeQuorumRequest(topics=[topic])
    deadline = time.monotonic() + LIMIT_S
    while True:
        for controller in controllers:
            with contextlib.suppress(KafkaError):
                answer = ask(controller.port, ApiKey.DESCRIBE_QUORUM, request)
                partition = answer.topics[0].partitions[0] if answer.topics else None
                if partition is not None and partition.error_code is ErrorCode.none:
                    return partition.leader_id, partition.leader_epoch
        assert time.monotonic() < deadline, "no controller leads"


def test_killed_leader_is_followed_by_another(controllers: dict[int, Controller]) -> None:
    leader_id, epoch = leader_of(list(controllers.values()))
    controllers[leader_id].end()
    others = [each for node_id, each in controllers.items() if node_id != leader_id]
    next_id, next_epoch = leader_of(others)
    assert next_id != leader_id
    assert next_epoch > epoch
    controllers[leader_id].start()
    again_id, again_epoch = leader_of(list(controllers.values()))
    assert again_epoch >= next_epoch
    assert again_id in controllers


def test_vote_of_a_foreign_cluster_is_refused(controllers: dict[int, Controller]) -> None:
    request = VoteRequest(
        cluster_id="b3RoZXItY2x1c3Rlci1pZA",
        voter_id=1,
        topics=[
            VoteRequestTopicData(
                topic_name=CLUSTER_METADATA_TOPIC,
                partitions=[VoteRequestPartitionData(partition_index=0, replica_epoch=1_000, replica_id=2)],
            )
        ],
    )
    answer = ask(controllers[1].port, ApiKey.VOTE, request)
    assert answer.error_code is ErrorCode.inconsistent_cluster_id


def test_emptied_metadata_folder_stops_the_start(
    tmp_path: pathlib.Path, free_port: Callable[[], int]
) -> None:
    controller = Controller(tmp_path, 1, {1: free_port()})
    controller.end()
    folder = tmp_path / "data-1" / CLUSTER_METADATA_FOLDER
    for path in folder.iterdir():
        path.unlink()
    command = [*MOLDAU, "node", "--config", str(controller.config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert f"{folder} holds neither a snapshot nor a log" in ended.stderr
    assert not list(folder.iterdir())
