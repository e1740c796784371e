"""A classic topic moves between a broker of Apache Kafka and our brokers (KIP-455). Clients produce and
consume meanwhile."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from foreign_clients import Java
from kafka_nodes import LIMIT_S, moldau, wait_for
from steady_load import Load

from moldau.client.cluster import Client, connected
from moldau.client.move_planning import PlacedPartition, PlannedMove
from moldau.client.moves import begin_moves, moves_in_progress

TOPIC, PARTITIONS = "events", 3
RECORDS = 1_500
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
DUMP = "kafka.tools.DumpLogSegments"


class MovingTopic:
    """A topic whose producer and consumer never stop."""

    def __init__(self, bootstrap: str, first: int, folders: Mapping[int, Path]) -> None:
        """Create the topic on one broker. ``folders`` are the log folders of all brokers by id."""
        self._bootstrap = bootstrap
        self._folders = folders
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._replicas: tuple[int, ...] = (first,)
        new = NewTopic(TOPIC, PARTITIONS, replica_assignment=[[first]] * PARTITIONS)
        self._admin.create_topics([new])[TOPIC].result(LIMIT_S)
        self.load = Load(bootstrap)
        self.load.go_on_until(RECORDS)

    def move(self, *replicas: int) -> None:
        """Move all partitions, and wait for the end of the moves. Clients continue meanwhile."""
        moves = [
            PlannedMove(PlacedPartition(TOPIC, index, self._replicas, 0), replicas)
            for index in range(PARTITIONS)
        ]
        self._ask(lambda client: begin_moves(client, moves))
        while self._ask(moves_in_progress):
            self.load.go_on_until(200)
        self._replicas = replicas
        wait_for(lambda: self._rows() == [(sorted(replicas), sorted(replicas))] * PARTITIONS)

    def move_by_kafkas_tool(self, java: Java, *replicas: int) -> None:
        """Move all partitions with ``kafka-reassign-partitions``, which also verifies the end of the moves.
        Clients continue meanwhile."""
        rows = [
            {"topic": TOPIC, "partition": index, "replicas": list(replicas)} for index in range(PARTITIONS)
        ]
        plan = next(iter(self._folders.values())).parent / "moves.json"
        plan.write_text(json.dumps({"version": 1, "partitions": rows}))
        tool = [REASSIGN, "--bootstrap-server", self._bootstrap, "--reassignment-json-file", str(plan)]
        (begun,) = self._meanwhile(lambda: java.tools([*tool, "--execute"]))
        assert "Successfully started partition reassignments" in begun
        while self._ask(moves_in_progress):
            self.load.go_on_until(200)
        (verified,) = self._meanwhile(lambda: java.tools([*tool, "--verify"]))
        assert verified.count("is completed.") == PARTITIONS
        self._replicas = replicas
        wait_for(lambda: self._rows() == [(sorted(replicas), sorted(replicas))] * PARTITIONS)

    def _meanwhile(self, work: Callable[[], list[str]]) -> list[str]:
        """Run the work in a thread while clients continue."""
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(work)
            while not future.done():
                self.load.go_on_until(50)
            return future.result()

    def lead(self, leader: int) -> None:
        """Make a replica the preferred replica, and elect it. Clients continue meanwhile."""
        self.move(leader, *(each for each in self._replicas if each != leader))
        partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        elected = self._admin.elect_leaders(ElectionType.PREFERRED, partitions)
        self.load.go_on_until(RECORDS)
        elected.result(LIMIT_S)
        wait_for(lambda: self._leaders() == {leader})
        self.load.go_on_until(RECORDS)

    def are_equal(self) -> bool:
        """Whether all replicas have the same bytes."""
        return all(len({self._bytes(each, index) for each in self._replicas}) == 1 for index in range(3))

    def check_with_kafkas_dump(self, java: Java) -> None:
        """Kafka's DumpLogSegments shows the same batches and records for all replicas of each partition."""
        for index in range(PARTITIONS):
            names = [",".join(map(str, self._files(broker, index))) for broker in self._replicas]
            shown = java.tools(*([DUMP, "--deep-iteration", "--files", name] for name in names))
            batches = {
                tuple(line for line in text.splitlines() if not line.startswith("Dumping")) for text in shown
            }
            assert len(batches) == 1
            assert sum("baseOffset" in line for line in batches.pop()) > 0

    def _files(self, broker: int, index: int) -> list[Path]:
        return sorted((self._folders[broker] / f"{TOPIC}-{index}").glob("*.log"))

    def _bytes(self, broker: int, index: int) -> bytes:
        return b"".join(path.read_bytes() for path in self._files(broker, index))

    def _leaders(self) -> set[int]:
        return {row.leader for row in self._partitions()}

    def _rows(self) -> list[tuple[Sequence[int], Sequence[int]]]:
        return [(sorted(row.replicas), sorted(row.isrs)) for row in self._partitions()]

    def _partitions(self) -> Sequence[Any]:
        found = self._admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
        return [found[index] for index in sorted(found)]

    def _ask(self, work: Any) -> Any:
        async def run() -> Any:
            async with connected(self._bootstrap, LIMIT_S) as client:
                return await self._retrying(client, work)

        return asyncio.run(run())

    async def _retrying(self, client: Client, work: Any) -> Any:
        return await client.retrying(lambda: work(client))


def check_a_move_from_kafka_and_back(
    java: Java, bootstrap: str, kafka: int, ours: tuple[int, int], folders: Mapping[int, Path]
) -> None:
    """Move a topic from Kafka's broker to two of our brokers and back. Each broker leads the topic once.
    Compare the bytes of the replicas. Finally, Kafka's own tool moves the topic to our brokers in one
    step."""
    topic = MovingTopic(bootstrap, kafka, folders)
    topic.move(kafka, *ours)
    topic.lead(ours[0])
    topic.lead(kafka)
    topic.lead(ours[1])
    wait_for(topic.are_equal)
    topic.check_with_kafkas_dump(java)
    topic.move(*ours)
    topic.load.go_on_until(RECORDS)
    wait_for(lambda: not (folders[kafka] / f"{TOPIC}-0").exists())
    wait_for(topic.are_equal)
    topic.move(kafka)
    topic.move_by_kafkas_tool(java, *ours)
    topic.load.go_on_until(RECORDS)
    wait_for(lambda: not (folders[kafka] / f"{TOPIC}-0").exists())
    topic.load.finish()
    wait_for(topic.are_equal)
    assert not topic.load.refused
    assert set(topic.load.read) == topic.load.acknowledged
    (shown,) = json.loads(moldau("topics", "describe", TOPIC, "--json", "--bootstrap", bootstrap))
    # The end offsets add up to the number of acknowledged records, so no record occurs twice.
    assert sum(row["latest"] for row in shown["partitions"]) == len(topic.load.acknowledged)
