"""The guards that a broker requests for the transactional batches of a diskless partition, and those that it
keeps."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from moldau.coordinators.diskless.calls import (
    EndedTransactionPart,
    GuardToIssue,
    IssuedGuard,
    MarkerToWrite,
    ProducersOfPartition,
)
from moldau.diskless.partition.local_guards import LocalGuards, NoLocalGuards
from moldau.diskless.partition.transactions import DisklessTransactions
from moldau.protocol.partitions import PartitionKey
from moldau.replication.partition_interface import AppendAnswer, AppendOutcome, TransactionalBatch
from moldau.runtime import ErrorCode

KEY = PartitionKey(UUID(int=7), 0)
PRODUCER = 5


class Coordinator:
    """A coordinator that issues the guard ``number``."""

    def __init__(self) -> None:
        self.number = 11
        self.requests = 0

    def replace_guard(self) -> None:
        """Make the guards invalid that were issued before."""
        self.number += 1

    async def guard_transactions(self, wanted: Sequence[GuardToIssue]) -> Sequence[IssuedGuard]:
        self.requests += 1
        return [IssuedGuard(each.topic_id, each.partition_index, guard=self.number) for each in wanted]

    async def end_transactions(self, markers: Sequence[MarkerToWrite]) -> Sequence[EndedTransactionPart]:
        raise NotImplementedError

    async def describe_producers(self, wanted: PartitionKey) -> ProducersOfPartition:
        raise NotImplementedError


@dataclass
class Turn:
    """The turn of a batch whose append does not have to wait, unless ``is_free`` is false."""

    has_own_epoch: bool
    is_free: bool = True
    is_known: bool = False
    verifications: list[int] = field(default_factory=list)
    during_check: Callable[[], None] = lambda: None

    def wait(self, append: Callable[[], Awaitable[AppendAnswer]]) -> "asyncio.Future[AppendOutcome]":
        async def later() -> AppendOutcome:
            answer = await append()
            return answer if isinstance(answer, AppendOutcome) else await answer

        return asyncio.ensure_future(later())

    def is_confirmed(self) -> bool:
        return self.is_known

    async def verify(self) -> None:
        self.verifications.append(1)
        self.during_check()


class LedCoordinator:
    """The coordinator's guards, on the broker that leads the coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def known(self, wanted: GuardToIssue) -> int:
        return self._coordinator.number

    def issue(self, wanted: GuardToIssue) -> int:
        return self._coordinator.number


class House:
    """The transactions of one partition. A batch is stored if its guard is ``coordinator.number``."""

    def __init__(self, *, has_own_epoch: bool, leads_coordinator: bool = False) -> None:
        self.coordinator = Coordinator()
        self.turn = Turn(has_own_epoch)
        self.stored = 0

        guards: LocalGuards = LedCoordinator(self.coordinator) if leads_coordinator else NoLocalGuards()
        self.partition = DisklessTransactions(KEY, self.coordinator, guards, self._append)

    def _append(self, records: memoryview, *, guard: int, **terms: Any) -> AppendAnswer:
        answer: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        is_valid = guard == self.coordinator.number
        self.stored += is_valid
        answer.set_result(AppendOutcome(ErrorCode.none if is_valid else ErrorCode.not_enough_replicas))
        return answer

    async def send(self, epoch: int = 0, acks: int = -1) -> ErrorCode:
        """Append a batch."""
        batch = TransactionalBatch(memoryview(b"records"), PRODUCER, epoch, acks, 1000)
        answer = self.partition.append(batch, self.turn)
        outcome = answer if isinstance(answer, AppendOutcome) else await answer
        await asyncio.sleep(0)  # the callbacks of the answer
        return outcome.error

    @property
    def work(self) -> tuple[int, int]:
        """The number of requests for guards, and of verifications."""
        return self.coordinator.requests, len(self.turn.verifications)


async def _an_epoch_needs_one_guard() -> None:
    house = House(has_own_epoch=True)
    for _ in range(3):
        assert await house.send() is ErrorCode.none
    assert house.work == (1, 1)
    house.coordinator.replace_guard()  # a marker ends the transaction
    assert await house.send(epoch=1) is ErrorCode.none
    assert await house.send(epoch=1) is ErrorCode.none
    assert house.work == (2, 2)
    assert house.stored == 5


async def _without_epochs_each_batch_needs_a_request() -> None:
    house = House(has_own_epoch=False)
    for _ in range(3):
        assert await house.send() is ErrorCode.none
    assert house.work == (3, 1)
    house.coordinator.replace_guard()  # another broker has written the marker
    assert await house.send() is ErrorCode.none
    assert house.work == (4, 2)


async def _the_leader_of_the_coordinator_needs_no_request() -> None:
    house = House(has_own_epoch=False, leads_coordinator=True)
    for _ in range(3):
        assert await house.send() is ErrorCode.none
    assert house.work == (1, 1)
    house.coordinator.replace_guard()
    for _ in range(2):
        assert await house.send() is ErrorCode.none
    assert house.work == (2, 2)
    assert house.stored == 5


async def _a_confirmed_transaction_needs_no_request() -> None:
    house = House(has_own_epoch=False, leads_coordinator=True)
    house.turn.is_known = True
    for _ in range(2):
        assert await house.send() is ErrorCode.none
    house.coordinator.replace_guard()  # a marker
    assert await house.send() is ErrorCode.none
    assert house.work == (0, 0)
    house.turn.is_free = False
    assert await house.send() is ErrorCode.none
    house.turn.is_known = False  # the next transaction
    house.coordinator.replace_guard()
    assert await house.send() is ErrorCode.none
    assert house.work == (1, 1)
    assert house.stored == 5


async def _another_broker_issues_the_guard_of_a_confirmed_transaction() -> None:
    house = House(has_own_epoch=True)
    house.turn.is_known = True
    for _ in range(2):
        assert await house.send() is ErrorCode.none
    assert house.work == (1, 1)


async def _a_refused_guard_is_not_kept() -> None:
    house = House(has_own_epoch=True)
    assert await house.send() is ErrorCode.none
    house.coordinator.replace_guard()  # another broker leads the coordinator now
    assert await house.send() is ErrorCode.not_enough_replicas
    assert await house.send() is ErrorCode.none
    assert house.work == (2, 2)


async def _a_marker_that_arrives_during_the_check_refuses_the_batch() -> None:
    """Nothing shows that it is the marker of an earlier transaction, so the batch is late."""
    house = House(has_own_epoch=True)
    house.turn.during_check = house.coordinator.replace_guard
    assert await house.send() is ErrorCode.not_enough_replicas
    house.turn.during_check = lambda: None
    assert await house.send() is ErrorCode.none


async def _a_batch_without_response_needs_a_request() -> None:
    house = House(has_own_epoch=True)
    for _ in range(2):
        assert await house.send(acks=0) is ErrorCode.none
    assert house.work == (2, 1)


async def _a_batch_waits_for_earlier_batches() -> None:
    house = House(has_own_epoch=True)
    assert await house.send() is ErrorCode.none
    batch = TransactionalBatch(memoryview(b"records"), PRODUCER, 0, -1, 1000)
    house.turn.is_free = False
    answer = house.partition.append(batch, house.turn)
    assert house.stored == 1
    assert not isinstance(answer, AppendOutcome)
    await answer
    assert house.stored == 2
    assert house.work == (1, 1)


@pytest.mark.parametrize(
    "story",
    [
        _an_epoch_needs_one_guard,
        _without_epochs_each_batch_needs_a_request,
        _the_leader_of_the_coordinator_needs_no_request,
        _a_confirmed_transaction_needs_no_request,
        _another_broker_issues_the_guard_of_a_confirmed_transaction,
        _a_refused_guard_is_not_kept,
        _a_marker_that_arrives_during_the_check_refuses_the_batch,
        _a_batch_without_response_needs_a_request,
        _a_batch_waits_for_earlier_batches,
    ],
)
def test_guards_of_batches(story: Callable[[], Any]) -> None:
    asyncio.run(story())
