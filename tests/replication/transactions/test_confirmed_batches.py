"""The first batch of a transaction does not wait if the transaction is confirmed already."""

import asyncio
import pathlib

import pytest
from test_transaction_guards import PRODUCER, GuardedPartition, batch

from moldau.replication.partition_interface import AppendAnswer, AppendOutcome, TransactionMarker
from moldau.runtime import ErrorCode, KafkaError, UnexpectedErrors
from moldau.server.handlers.records.transaction_markers import Participation
from moldau.server.handlers.records.transactional_appends import TransactionalAppends, TransactionalProduce


class Coordinator:
    """Confirms nothing, or everything, and counts the checks that wait."""

    def __init__(self, *, confirms: bool) -> None:
        self.confirms = confirms
        self.checks = 0
        self.admitted = asyncio.Event()

    async def verify(self, participation: Participation) -> None:
        self.checks += 1
        await self.admitted.wait()

    def is_confirmed(self, participation: Participation) -> bool:
        return self.confirms


@pytest.fixture
def house(tmp_path: pathlib.Path) -> GuardedPartition:
    return GuardedPartition(tmp_path)


def send(appends: TransactionalAppends, house: GuardedPartition, sequence: int) -> AppendAnswer:
    return appends.append(house.partition, batch(sequence), TransactionalProduce("x", 11, 1, 1000))


def test_a_confirmed_batch_is_appended_at_once(house: GuardedPartition) -> None:
    async def story() -> None:
        coordinator = Coordinator(confirms=True)
        appends = TransactionalAppends(coordinator.verify, UnexpectedErrors(), coordinator.is_confirmed)
        first = send(appends, house, 0)
        assert isinstance(first, AppendOutcome)
        assert (first.error, first.base_offset) == (ErrorCode.none, 0)
        assert not house.partition.guards.count
        coordinator.confirms = False
        second = send(appends, house, 1)  # the transaction is open in the partition now
        assert isinstance(second, AppendOutcome)
        assert second.error is ErrorCode.none
        await house.partition.transactions.write_marker(TransactionMarker(PRODUCER, 0, True, 0, 0))
        third = send(appends, house, 2)  # a batch of the next transaction, which nothing has confirmed
        assert not isinstance(third, AppendOutcome)
        coordinator.admitted.set()
        assert (await third).error is ErrorCode.none
        assert coordinator.checks == 1

    asyncio.run(story())


def test_a_confirmed_batch_waits_for_earlier_batches(house: GuardedPartition) -> None:
    async def story() -> None:
        coordinator = Coordinator(confirms=False)
        appends = TransactionalAppends(coordinator.verify, UnexpectedErrors(), coordinator.is_confirmed)
        first = send(appends, house, 0)
        coordinator.confirms = True
        second = send(appends, house, 1)
        assert not isinstance(first, AppendOutcome)
        assert not isinstance(second, AppendOutcome)
        coordinator.admitted.set()
        assert [(await first).base_offset, (await second).base_offset] == [0, 1]
        assert not house.partition.guards.count

    asyncio.run(story())


def test_a_refused_batch_leaves_no_guard(house: GuardedPartition) -> None:
    async def story() -> None:
        coordinator = Coordinator(confirms=True)
        appends = TransactionalAppends(coordinator.verify, UnexpectedErrors(), coordinator.is_confirmed)
        damaged = bytearray(batch(0))
        damaged[-1] ^= 1
        request = TransactionalProduce("x", 11, 1, 1000)
        refused = appends.append(house.partition, memoryview(damaged), request)
        assert isinstance(refused, AppendOutcome)
        assert refused.error is ErrorCode.corrupt_message
        assert not house.partition.guards.count

    asyncio.run(story())


def test_an_error_of_the_check_refuses_the_batch(house: GuardedPartition) -> None:
    def is_confirmed(participation: Participation) -> bool:
        raise KafkaError(ErrorCode.invalid_request, "The transactional id is empty.")

    async def story() -> None:
        appends = TransactionalAppends(Coordinator(confirms=False).verify, UnexpectedErrors(), is_confirmed)
        refused = send(appends, house, 0)
        assert isinstance(refused, AppendOutcome)
        assert refused.error is ErrorCode.invalid_request
        assert not house.partition.guards.count

    asyncio.run(story())
