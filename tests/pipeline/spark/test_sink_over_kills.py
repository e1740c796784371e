"""Batches of a query that are written as transactions. The broker of each request is killed before the
request arrives, or before the response arrives."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")

from test_transactional_sink import DyingClient, Sink, everywhere

import moldau.testing
from moldau.network.client.node_connection import NodeAddress
from moldau.runtime.errors import ErrorCode, KafkaError

pytestmark = pytest.mark.real_time

PROPERTIES = {
    "broker.heartbeat.interval.ms": "250",
    "broker.session.timeout.ms": "1500",
    "default.replication.factor": "3",
    "diskless.metadata.topic.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
}
REQUESTS = (
    "InitProducerIdRequest",
    "OffsetFetchRequest",
    "AddPartitionsToTxnRequest",
    "ProduceRequest",
    "AddOffsetsToTxnRequest",
    "TxnOffsetCommitRequest",
    "EndTxnRequest",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[moldau.testing.Cluster]:
    with moldau.testing.Cluster(brokers=3, properties=PROPERTIES) as running:
        yield running


class StrikingClient(DyingClient):
    """A client that kills the broker of its first request of a type."""

    def __init__(self, cluster: moldau.testing.Cluster, request: str, *, after: bool) -> None:
        super().__init__(cluster)
        self._cluster = cluster
        self._request = request
        self._is_after = after
        self.victim: int | None = None

    async def ask(self, message: Any, **options: Any) -> Any:
        if self.victim is not None or type(message).__name__ != self._request:
            return await super().ask(message, **options)
        self.victim = self._id_of(options["broker"])
        if self._is_after:
            await super().ask(message, **options)
        await asyncio.to_thread(self._cluster.kill, self.victim)
        if self._is_after:
            raise KafkaError(ErrorCode.network_exception, "the response is lost")
        return await super().ask(message, **options)

    def _id_of(self, broker: int | NodeAddress) -> int:
        if isinstance(broker, int):
            return broker
        ports = {int(self._cluster.address(each).rpartition(":")[2]): each for each in self._cluster.brokers}
        return ports[broker.port]


@pytest.mark.parametrize("after", [False, True], ids=["request-lost", "response-lost"])
def test_a_batch_is_written_once_although_brokers_are_killed(
    cluster: moldau.testing.Cluster, after: bool
) -> None:
    sink = Sink(cluster, f"kills-{after}".lower())
    expected: list[str] = []
    for batch_id, request in enumerate(REQUESTS):
        client = StrikingClient(cluster, request, after=after)
        values = [f"{request}-{number}" for number in range(12)]
        sink.commit(batch_id, values, client)
        assert client.victim is not None
        cluster.restart(client.victim)
        expected += values
    assert sink.written() == everywhere(expected)
