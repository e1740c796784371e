"""If a broker cannot read its copy of a chunk, it gets the records from the copies of other brokers."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from active_replica import machine
from damaged_copies import DamagedStore, IncompleteStore, holder_of
from registered_chunks import chunk

from moldau.chunks.calls import (
    ChunkFileFetch,
    ChunkFilePiece,
    ChunkRead,
    ChunkRecords,
    ChunkSearch,
    SegmentCopy,
)
from moldau.chunks.meters import ChunkMeters
from moldau.metrics import Meters
from moldau.replication.partition_interface import FoundOffset
from moldau.runtime import ErrorCode, KafkaError
from moldau.server.subsystems.chunks import peers as peers_module
from moldau.server.subsystems.chunks.peers import ChunkCallService, ChunkPeers

ID = (UUID(int=1), 0, 0)
HERE = 1
ELSEWHERE = (ChunkRecords([b"r"], 1, 10), FoundOffset(3, 5, 0), ChunkFilePiece({"f": 1}))
FAILURES = (OSError("a bad disk"), KafkaError(ErrorCode.kafka_storage_error, "a bad copy"))


class Others:
    """A channel to other brokers, which returns the given answer to each call."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def call(self, call: Any, wanted: Any) -> Any:
        return self._answer


async def ask(failure: Exception, answer: Any, *holders: int) -> Any:
    brokers = {id: SimpleNamespace(fenced=False, rack=None) for id in (1, 2)}
    context: Any = SimpleNamespace(
        view=SimpleNamespace(local_id=HERE, image=SimpleNamespace(brokers=brokers)),
        config=SimpleNamespace(inter_broker_listener_name="L", rack=None),
        machine=machine(),
    )
    unreadable: list[Any] = []
    holder = holder_of(DamagedStore(failure), unreadable)
    unused: Any = None
    meters = ChunkMeters(Meters())
    peers: Any = ChunkPeers(context, holder, unused, meters, unused)
    peers._channel = lambda broker_id, timeout_ms: Others(answer)
    held = chunk(0, 9, *holders)
    if isinstance(answer, ChunkRecords):
        try:
            found = await peers.read("t", held, ChunkRead(*ID, 0, 100))
        finally:
            assert unreadable == [ID]
        assert meters.proxied_bytes.value == found.size_bytes
        return found
    if isinstance(answer, FoundOffset):
        return await peers.find("t", held, ChunkSearch(*ID, 5), unused)
    return await peers.fetch_file(held, ChunkFileFetch(*ID))


@pytest.mark.parametrize("answer", ELSEWHERE, ids=["read", "find", "fetch"])
@pytest.mark.parametrize("failure", FAILURES, ids=["disk", "copy"])
def test_another_broker_serves_a_chunk_whose_copy_is_damaged(failure: Exception, answer: Any) -> None:
    assert asyncio.run(ask(failure, answer, HERE, 2)) == answer


@pytest.mark.parametrize("call", ["read", "find", "fetch_file"])
@pytest.mark.parametrize("failure", FAILURES, ids=["disk", "copy"])
def test_a_broker_that_cannot_read_its_copy_for_another_broker_copies_the_chunk_again(
    failure: Exception, call: str
) -> None:
    wanted = {"read": ChunkRead(*ID, 0, 100), "find": ChunkSearch(*ID, 5), "fetch_file": ChunkFileFetch(*ID)}
    topics = SimpleNamespace(name_of=lambda topic_id: "t")
    context: Any = SimpleNamespace(
        view=SimpleNamespace(local_id=HERE, image=SimpleNamespace(topics=topics)),
        metadata=SimpleNamespace(configs=None),
    )
    unreadable: list[Any] = []
    holder = holder_of(DamagedStore(failure), unreadable)
    unused: Any = None
    service = ChunkCallService(context, holder, unused, unused)
    with pytest.raises(KafkaError, match="a bad") as error:
        asyncio.run(getattr(service, call)(wanted[call]))
    assert (error.value.code, unreadable) == (ErrorCode.kafka_storage_error, [ID])


def test_an_incomplete_copy_is_no_source_of_other_copies() -> None:
    topics = SimpleNamespace(name_of=lambda topic_id: "t")
    context: Any = SimpleNamespace(
        view=SimpleNamespace(local_id=HERE, image=SimpleNamespace(topics=topics)),
        metadata=SimpleNamespace(configs=None),
    )
    unreadable: list[Any] = []
    holder = holder_of(IncompleteStore(FAILURES[1]), unreadable)
    unused: Any = None
    service = ChunkCallService(context, holder, unused, unused)
    with pytest.raises(KafkaError, match="a bad"):
        asyncio.run(service.fetch_file(ChunkFileFetch(*ID)))
    assert unreadable == [ID]


@pytest.mark.parametrize("answer", ELSEWHERE, ids=["read", "find", "fetch"])
@pytest.mark.parametrize("failure", FAILURES, ids=["disk", "copy"])
def test_the_only_broker_with_a_chunk_reports_why_it_cannot_read_it(failure: Exception, answer: Any) -> None:
    with pytest.raises(KafkaError, match="a bad") as error:
        asyncio.run(ask(failure, answer, HERE))
    assert error.value.code is ErrorCode.kafka_storage_error


def test_different_chunks_are_read_and_copied_from_different_brokers() -> None:
    """A hash of the chunk chooses between brokers that are equal. Brokers of the rack come first, and fenced
    brokers last."""
    racks = {HERE: "a", 2: "a", 3: "a", 4: "b", 5: "a"}
    brokers = {each: SimpleNamespace(fenced=each == 5, rack=rack) for each, rack in racks.items()}
    peers: Any = object.__new__(ChunkPeers)
    peers._view = SimpleNamespace(local_id=HERE, image=SimpleNamespace(brokers=brokers))
    peers._rack = "a"
    orders = [
        tuple(
            peers._holders(
                chunk(start, start + 9, HERE, 2, 3, 4, 5, 6), ChunkFileFetch(UUID(int=1), 0, start)
            )
        )
        for start in range(0, 400, 10)
    ]
    assert set(orders) == {(2, 3, 4, 5), (3, 2, 4, 5)}
    assert 10 < sum(order[0] == 2 for order in orders) < 30


class _SilentBroker:
    """A channel to a broker that never answers. ``on_call`` is called when a call begins."""

    def __init__(self, on_call: Callable[[], None]) -> None:
        self._on_call = on_call

    async def call(self, call: Any, wanted: Any) -> Any:
        self._on_call()
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    "after",
    [{}, {2: SimpleNamespace(fenced=True, epoch=7)}, {2: SimpleNamespace(fenced=False, epoch=8)}],
    ids=["unregistered", "fenced", "restarted"],
)
def test_storing_a_segment_fails_when_the_broker_with_the_chunk_ends(
    after: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "_INCARNATION_CHECK_S", 0.001)
    brokers = {2: SimpleNamespace(fenced=False, epoch=7)}
    peers: Any = object.__new__(ChunkPeers)
    peers._view = SimpleNamespace(local_id=HERE, image=SimpleNamespace(brokers=brokers))

    def end() -> None:
        brokers.clear()
        brokers.update(after)

    peers._channel = lambda broker_id, timeout_ms: _SilentBroker(end)
    wanted = SegmentCopy(*ID, 0, segment_id=UUID(int=2))
    with pytest.raises(KafkaError, match="broker 2 has ended"):
        asyncio.run(asyncio.wait_for(peers.store_segment(2, wanted), 5))
