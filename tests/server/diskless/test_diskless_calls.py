"""The calls of diskless coordinators. The same tests check calls inside the process and calls over a
connection."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "coordinators" / "diskless"))
from diskless_house import OTHER, TOPIC, House, batch, file

from moldau.coordinators.diskless import calls
from moldau.coordinators.diskless.calls.asking import DisklessCoordinatorCalls
from moldau.coordinators.diskless.calls.network import NetworkDisklessCoordinators, RpcChannel
from moldau.coordinators.diskless.calls.port import ServedCalls
from moldau.coordinators.diskless.handlers import CALLS, DisklessHandlers
from moldau.network.authorization import AclOperation, AclResourceType, AllowEveryone, Authorizer
from moldau.network.client.rpc_client import RpcClient
from moldau.network.context import RequestContext
from moldau.network.limits import Listener
from moldau.network.served import Handler
from moldau.network.server import SocketServer
from moldau.protocol.api import Scope
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.own.describe_own_apis import DescribeOwnApisRequest
from moldau.protocol.own.diskless import find_batches as find_wire
from moldau.protocol.own.rights import Right
from moldau.protocol.special_timestamps import LATEST_TIMESTAMP
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.entropy import SeededEntropy
from moldau.server.handlers.metadata.versions import VersionHandlers
from moldau.server.requests.dispatch import Dispatcher
from moldau.simulation.world.world import World

NAMES = {TOPIC: "t", OTHER: "secret"}
TIMEOUT_MS = 60_000


class Broker:
    """A listener that serves the calls of one coordinator, and a client of this listener."""

    def __init__(self, service: ServedCalls, authorizer: Authorizer) -> None:
        handlers: dict[int, Handler] = {}
        versions = VersionHandlers(Scope.BROKER, lambda: handlers, {}, lambda: (0, {}))
        handlers |= versions.table() | DisklessHandlers(service, authorizer, NAMES.get).table()
        self._dispatcher = Dispatcher(handlers, Scope.BROKER)
        self._server = SocketServer(self._dispatcher, [Listener("PLAINTEXT", "127.0.0.1", 0)])
        self.rpc = RpcClient(SeededEntropy(1))
        self.moved: list[int] = []
        self.port = 0

    async def __aenter__(self) -> "Broker":
        self.port = (await self._server.start())["PLAINTEXT"]
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.rpc.close()
        await self._server.stop(0)
        await self._dispatcher.close()

    async def _locate(self, coordinator_id: int) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def coordinators(self, timeout_ms: int = TIMEOUT_MS) -> NetworkDisklessCoordinators:
        return NetworkDisklessCoordinators(RpcChannel(self.rpc, self._locate, self.moved.append, timeout_ms))

    async def ask(self, message: Any) -> Any:
        return await self.rpc.request("127.0.0.1", self.port, message.API_KEY, None, message)


@asynccontextmanager
async def local(service: ServedCalls) -> AsyncIterator[DisklessCoordinatorCalls]:
    yield service


@asynccontextmanager
async def remote(service: ServedCalls) -> AsyncIterator[DisklessCoordinatorCalls]:
    async with Broker(service, AllowEveryone()) as broker:
        yield broker.coordinators()


Story = Callable[[DisklessCoordinatorCalls], Awaitable[None]]


@pytest.fixture(params=[local, remote], ids=["local", "remote"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Story], None]:
    """Run a test function with calls inside the process, or over a connection."""

    async def run(story: Story) -> None:
        house = House(tmp_path)
        service = await house.start()
        async with request.param(service) as coordinators:
            await story(coordinators)
        await house.stop()

    return lambda story: asyncio.run(run(story))


async def code_of(call: Awaitable[object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await call
    return caught.value.code


def test_records_are_committed_found_and_deleted(play: Callable[[Story], None]) -> None:
    async def story(coordinators: DisklessCoordinatorCalls) -> None:
        topics = [
            calls.PartitionsToCreate(TOPIC, "t", [0, 1]),
            calls.PartitionsToCreate(OTHER, "secret", [0]),
        ]
        created = await coordinators.create_partitions(0, topics)
        assert created == [calls.TopicResult(TOPIC), calls.TopicResult(OTHER)]
        commit = file("f1", batch(0, 2), batch(7, 1), batch(1, 3, append_time=True), owners=(0, 4))
        committed = (await coordinators.commit_file(0, commit)).batches
        assert [(one.error, one.base_offset) for one in committed] == [
            (ErrorCode.none, 0),
            (ErrorCode.unknown_topic_or_partition, -1),
            (ErrorCode.none, 0),
        ]
        assert (await coordinators.commit_file(0, commit)).batches == committed
        wanted = [calls.PartitionToFind(TOPIC, index, 0) for index in (1, 0, 9)]
        found = await coordinators.find_batches(0, calls.FindBatchesCall(wanted))
        assert [(one.partition_index, one.error, one.high_watermark) for one in found] == [
            (1, ErrorCode.none, 3),
            (0, ErrorCode.none, 2),
            (9, ErrorCode.unknown_topic_or_partition, -1),
        ]
        (coordinate,) = found[0].batches
        assert (coordinate.object_key, coordinate.base_offset, coordinate.last_offset) == ("f1", 0, 2)
        assert (coordinate.byte_offset, coordinate.size_bytes) == (200, 100)
        assert coordinate.timestamp_type == calls.LOG_APPEND_TIME
        (deleted,) = await coordinators.delete_records(0, [calls.OffsetToDelete(TOPIC, 1, 3)])
        assert deleted == calls.DeletedRecords(TOPIC, 1, low_watermark=3)
        assert await coordinators.delete_topics(0, [OTHER]) == [calls.TopicResult(OTHER)]

    play(story)


def test_results_are_in_the_order_of_the_questions(play: Callable[[Story], None]) -> None:
    async def story(coordinators: DisklessCoordinatorCalls) -> None:
        topics = [
            calls.PartitionsToCreate(TOPIC, "t", [0, 1]),
            calls.PartitionsToCreate(OTHER, "secret", [0]),
        ]
        await coordinators.create_partitions(0, topics)
        await coordinators.commit_file(0, file("f1", batch(0, 2), batch(0, 5, topic=OTHER)))
        asked = [(TOPIC, 0), (OTHER, 0), (TOPIC, 1), (TOPIC, 0)]
        latest = [calls.TimestampToList(*one, LATEST_TIMESTAMP) for one in asked]
        listed = await coordinators.list_offsets(0, latest)
        assert [(one.topic_id, one.partition_index, one.offset) for one in listed] == [
            (TOPIC, 0, 2),
            (OTHER, 0, 5),
            (TOPIC, 1, 0),
            (TOPIC, 0, 2),
        ]
        (by_time,) = await coordinators.list_offsets(0, [calls.TimestampToList(TOPIC, 0, 0)])
        assert by_time.batch is not None
        assert (by_time.batch.object_key, by_time.offset) == ("f1", 0)
        offsets = [calls.OffsetToDelete(*one, 1) for one in asked]
        deleted = await coordinators.delete_records(0, offsets)
        assert [(one.topic_id, one.partition_index) for one in deleted] == asked

    play(story)


def test_files_are_described_closed_handed_over_and_pruned(play: Callable[[Story], None]) -> None:
    async def story(coordinators: DisklessCoordinatorCalls) -> None:
        assert await coordinators.oldest_file(0) is None
        await coordinators.create_partitions(0, [calls.PartitionsToCreate(TOPIC, "t", [0])])
        await coordinators.commit_file(0, file("f1", batch(0, 2), owners=(0, 3)))
        assert await coordinators.oldest_file(0) == 1_000_000
        known, unknown = await coordinators.describe_files(0, ["f1", "f2"])
        assert (known.is_known, known.has_live_batches, known.is_owned) == (True, True, True)
        assert (tuple(known.next_owner_ids), known.used_bytes, known.unused_since_ms) == ((3,), 100, -1)
        assert not unknown.is_known
        assert [one.object_key for one in await coordinators.list_files(0)] == ["f1"]
        assert await coordinators.list_files(0, "f1") == []
        refused, closed = await coordinators.close_files(0, ["f1", "f2"])
        assert refused.error is not ErrorCode.none
        assert closed == calls.ClosedFile("f2")
        await coordinators.take_over(0, calls.FileToHandOver("f3", (0, 5), 7, 900_000))
        (taken,) = await coordinators.describe_files(0, ["f3"])
        assert (taken.is_owned, tuple(taken.next_owner_ids), taken.size_bytes) == (True, (5,), 7)
        pruned = await coordinators.prune(0, calls.PruneCall(TOPIC, 0, 0, 2, 1, 77))
        assert (pruned.error, pruned.wal_start_offset, pruned.remote_metadata_position) == (
            ErrorCode.none, 2, 77,
        )  # fmt: skip

    play(story)


def test_topics_and_coordinators_are_described(play: Callable[[Story], None]) -> None:
    async def story(coordinators: DisklessCoordinatorCalls) -> None:
        topics = [calls.PartitionsToCreate(TOPIC, "t", [0, 1]), calls.PartitionsToCreate(OTHER, "a", [0])]
        await coordinators.create_partitions(0, topics)
        await coordinators.commit_file(0, file("f1", batch(0, 2), batch(1, 2)))
        rows = await coordinators.describe_topics(0)
        assert [(row.topic_name, row.partition_index, row.high_watermark) for row in rows] == [
            ("a", 0, 0), ("t", 0, 2), ("t", 1, 2),
        ]  # fmt: skip
        described = await coordinators.describe_topics_and_objects(
            0, calls.DescribeTopicsCall([TOPIC], with_object_keys=True)
        )
        assert list(described.partitions) == rows[1:]
        objects = described.objects[TOPIC]
        assert (objects.objects, list(objects.object_keys)) == (1, ["f1"])
        state = await coordinators.describe_coordinator(0)
        assert (state.coordinator_id, state.epoch, state.partitions, state.files) == (0, 0, 3, 1)

    play(story)


def test_a_call_fails_if_another_broker_leads_the_coordinator(play: Callable[[Story], None]) -> None:
    async def story(coordinators: DisklessCoordinatorCalls) -> None:
        assert await code_of(coordinators.oldest_file(7)) is ErrorCode.not_coordinator
        assert await code_of(coordinators.commit_file(7, file("f", batch()))) is ErrorCode.not_coordinator

    play(story)


def test_commits_take_effect_in_the_order_of_the_calls(play: Callable[[Story], None]) -> None:
    async def story(coordinators: DisklessCoordinatorCalls) -> None:
        await coordinators.create_partitions(0, [calls.PartitionsToCreate(TOPIC, "t", [0])])
        committing = [coordinators.commit_file(0, file(f"f{number}", batch(0, 1))) for number in range(30)]
        results = await asyncio.gather(*committing)
        assert [result.batches[0].base_offset for result in results] == list(range(30))

    play(story)


# -- calls over a connection only --------------------------------------------------------------


def with_broker(
    folder: Path, story: Callable[[Broker, House], Awaitable[None]], authorizer: Authorizer | None = None
) -> None:
    async def run() -> None:
        house = House(folder)
        service = await house.start()
        async with Broker(service, authorizer or AllowEveryone()) as broker:
            await story(broker, house)
        await house.stop()

    asyncio.run(run())


def test_versions_of_own_apis_are_listed_by_an_own_call_and_not_by_api_versions(tmp_path: Path) -> None:
    async def story(broker: Broker, house: House) -> None:
        own = await broker.ask(DescribeOwnApisRequest())
        ranges = {row.api_key: (row.min_version, row.max_version) for row in own.apis}
        assert set(ranges) == {*CALLS, DescribeOwnApisRequest.API_KEY}
        assert (ranges[11642], ranges[11645]) == ((0, 3), (0, 2))
        public = await broker.ask(ApiVersionsRequest(client_software_name="t", client_software_version="1"))
        assert not [row.api_key for row in public.api_keys if row.api_key > 11_000]

    with_broker(tmp_path, story)


def test_a_call_that_a_listener_does_not_serve_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async def story(broker: Broker, house: House) -> None:
        code = await code_of(broker.rpc.version_of("127.0.0.1", broker.port, 11656))
        assert code is ErrorCode.unsupported_version
        # The failed call must not close the connection.
        assert await broker.coordinators().oldest_file(0) is None

    with_broker(tmp_path, story)


def test_a_broker_that_does_not_lead_the_coordinator_is_forgotten(tmp_path: Path) -> None:
    async def story(broker: Broker, house: House) -> None:
        assert await code_of(broker.coordinators().oldest_file(7)) is ErrorCode.not_coordinator
        assert broker.moved == [7]

    with_broker(tmp_path, story)


class Reader:
    """A principal that may read one topic, but has no other rights."""

    def allows(
        self, context: RequestContext, operation: AclOperation, resource: AclResourceType, name: str
    ) -> bool:
        return (operation, resource, name) == (AclOperation.READ, AclResourceType.TOPIC, "t")


def test_a_reader_finds_batches_of_the_topics_that_it_may_read(tmp_path: Path) -> None:
    async def story(broker: Broker, house: House) -> None:
        await house.service.create_partitions(0, [calls.PartitionsToCreate(TOPIC, "t", [0])])
        await house.service.commit_file(0, file("f1", batch(0, 2)))
        coordinators = broker.coordinators()

        def find(*topics: UUID) -> Awaitable[list[calls.FoundPartition]]:
            wanted = [calls.PartitionToFind(topic_id, 0, 0) for topic_id in topics]
            return coordinators.find_batches(0, calls.FindBatchesCall(wanted))

        (found,) = await find(TOPIC)
        assert found.batches[0].object_key == "f1"
        latest = calls.TimestampToList(TOPIC, 0, LATEST_TIMESTAMP)
        assert (await coordinators.list_offsets(0, [latest]))[0].offset == 2
        assert await code_of(find(TOPIC, OTHER)) is ErrorCode.topic_authorization_failed
        assert await code_of(find(UUID(int=99))) is ErrorCode.unknown_topic_id

    with_broker(tmp_path, story, Reader())


def test_a_reader_makes_no_other_call(tmp_path: Path) -> None:
    async def story(broker: Broker, house: House) -> None:
        await house.service.create_partitions(0, [calls.PartitionsToCreate(TOPIC, "t", [0])])
        coordinators = broker.coordinators()
        refused: list[Awaitable[object]] = [
            coordinators.commit_file(0, file("f", batch())),
            coordinators.delete_records(0, [calls.OffsetToDelete(TOPIC, 0, -1)]),
            coordinators.delete_topics(0, [TOPIC]),
            coordinators.create_partitions(0, [calls.PartitionsToCreate(TOPIC, "t", [1])]),
            coordinators.prune(0, calls.PruneCall(TOPIC, 0, 0, 0, 1)),
            coordinators.describe_topics(0),
            coordinators.describe_coordinator(0),
            coordinators.describe_files(0, ["f"]),
            coordinators.list_files(0),
            coordinators.oldest_file(0),
            coordinators.close_files(0, ["f"]),
            coordinators.take_over(0, calls.FileToHandOver("f", (0,), 1, 1)),
        ]
        codes = [await code_of(call) for call in refused]
        assert codes == [ErrorCode.cluster_authorization_failed] * len(refused)
        assert [row.high_watermark for row in await house.service.describe_topics(0)] == [0]

    with_broker(tmp_path, story, Reader())


def test_every_call_that_is_not_a_readers_asks_for_cluster_action() -> None:
    assert {key for key, call in CALLS.items() if call.right is Right.READ_TOPIC} == {11644, 11645}
    assert {call.right for call in CALLS.values()} == {Right.READ_TOPIC, Right.CLUSTER_ACTION}


class Stuck:
    """A coordinator whose commits never end."""

    def __init__(self) -> None:
        self.begun = 0

    def commit_file(self, coordinator_id: int, call: object) -> "asyncio.Future[Any]":
        self.begun += 1
        return asyncio.get_running_loop().create_future()


def test_a_call_ends_at_its_deadline() -> None:
    async def story() -> None:
        began = asyncio.get_running_loop().time()
        asked = CALLS[11642].ask(0, file("f1", batch()), 1, 30_000)
        stuck: Any = Stuck()
        answer: Any = await CALLS[11642].answer(stuck, asked, 1, waited_ms=10_000)
        assert answer.error_code is ErrorCode.request_timed_out
        assert stuck.begun == 1
        assert asyncio.get_running_loop().time() - began == pytest.approx(20, abs=0.001)

    with World(1) as world:
        world.run(story())


def test_a_wait_for_batches_ends_before_the_deadline() -> None:
    request = find_wire.DisklessFindBatchesRequest(fetch_max_bytes=1, max_wait_ms=10_000, timeout_ms=4_000)
    assert CALLS[11645].arguments(request).max_wait_ms == 2_000


def test_a_call_that_waited_longer_than_its_caller_is_not_begun() -> None:
    async def story() -> None:
        asked = CALLS[11642].ask(0, file("f1", batch()), 1, 1_000)
        stuck: Any = Stuck()
        answer: Any = await CALLS[11642].answer(stuck, asked, 1, waited_ms=1_001)
        assert answer.error_code is ErrorCode.request_timed_out
        assert stuck.begun == 0

    asyncio.run(story())
