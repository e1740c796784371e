"""The transaction coordinator may refuse the check of a transaction. The partition then keeps no guard of
this check, but it keeps the guards of other checks."""

import asyncio
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
from test_transaction_guards import PRODUCER, GuardedPartition, batch

from moldau.network.authorization import AllowEveryone
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.replication.partition_interface import AppendOutcome, TransactionMarker
from moldau.runtime import ErrorCode, KafkaError, UnexpectedErrors
from moldau.server.handlers.records.transaction_markers import Participation, TransactionalHandlers
from moldau.server.handlers.records.transactional_appends import (
    JOINING_VERSION,
    TransactionalAppends,
    TransactionalProduce,
)


@pytest.fixture
def house(tmp_path: pathlib.Path) -> GuardedPartition:
    return GuardedPartition(tmp_path)


async def _refuse(participation: Participation) -> None:
    raise KafkaError(ErrorCode.invalid_producer_id_mapping)


async def _allow(participation: Participation) -> None:
    return None


def test_refused_commits_of_offsets_leave_no_guards(house: GuardedPartition) -> None:
    checks = house.partition.guards
    runtime = SimpleNamespace(
        guard=lambda index, kind: checks.guard(kind.producer_id, kind.producer_epoch),
        withdraw=lambda index, kind, guard: checks.withdraw(kind.producer_id, guard),
    )
    groups: Any = SimpleNamespace(partition_of=lambda group: 0, runtime=runtime)
    unused: Any = None
    handlers = TransactionalHandlers(groups, unused, _refuse, AllowEveryone())

    async def ask() -> None:
        context: Any = SimpleNamespace(api_version=5)
        for producer_id in range(20):
            request = TxnOffsetCommitRequest(
                transactional_id="x", group_id="g", producer_id=producer_id, producer_epoch=0, topics=[]
            )
            await handlers.commit_offsets(context, request)

    asyncio.run(ask())
    assert not checks.count


@pytest.mark.parametrize("admit", [_refuse, _allow])
def test_a_batch_leaves_no_guard(house: GuardedPartition, admit: Any) -> None:
    appends = TransactionalAppends(admit, UnexpectedErrors())

    async def ask() -> ErrorCode:
        answer = appends.append(house.partition, batch(0), TransactionalProduce("x", 12, 1, 1000))
        return (answer if isinstance(answer, AppendOutcome) else await answer).error

    error = asyncio.run(ask())
    assert error is (ErrorCode.none if admit is _allow else ErrorCode.invalid_producer_id_mapping)
    assert not house.partition.guards.count


def test_a_refused_check_leaves_the_guard_to_another(house: GuardedPartition) -> None:
    checks = house.partition.guards
    first, second = house.guard(), house.guard()
    assert first is not None
    assert first is second
    checks.withdraw(PRODUCER, first)
    assert house.append(batch(0), second) is ErrorCode.none
    checks.withdraw(PRODUCER, first)
    assert not checks.count


def test_the_marker_of_the_last_transaction_may_arrive_during_the_check(house: GuardedPartition) -> None:
    """From transaction version 2 on, this marker has the epoch of the next transaction."""
    assert house.append(batch(0), house.guard()) is ErrorCode.none
    partition = house.partition

    async def end_the_last(participation: Participation) -> None:
        await partition.transactions.write_marker(TransactionMarker(PRODUCER, 1, True, 0, 2))

    appends = TransactionalAppends(end_the_last, UnexpectedErrors())

    async def ask() -> ErrorCode:
        answer = appends.append(
            partition, batch(0, epoch=1), TransactionalProduce("x", JOINING_VERSION, 1, 1000)
        )
        return (answer if isinstance(answer, AppendOutcome) else await answer).error

    assert asyncio.run(ask()) is ErrorCode.none
    assert not partition.guards.count


def test_the_marker_of_the_last_transaction_may_arrive_before_offsets(house: GuardedPartition) -> None:
    """A commit of offsets is checked with the guard that is valid after the check."""
    checks = house.partition.guards
    runtime = SimpleNamespace(
        guard=lambda index, kind: checks.guard(kind.producer_id, kind.producer_epoch),
        withdraw=lambda index, kind, guard: checks.withdraw(kind.producer_id, guard),
    )
    outcomes: list[ErrorCode] = []

    async def commit_in_transaction(request: TxnOffsetCommitRequest, guard: Any) -> None:
        checks.check(request.producer_id, request.producer_epoch, guard)
        outcomes.append(ErrorCode.none)

    async def end_the_last(participation: Participation) -> None:
        await house.partition.transactions.write_marker(TransactionMarker(PRODUCER, 1, True, 0, 2))

    offsets = SimpleNamespace(commit_in_transaction=commit_in_transaction)
    groups: Any = SimpleNamespace(partition_of=lambda group: 0, runtime=runtime, offsets=offsets)
    unused: Any = None
    handlers = TransactionalHandlers(groups, unused, end_the_last, AllowEveryone())
    assert house.append(batch(0), house.guard()) is ErrorCode.none

    async def ask() -> None:
        context: Any = SimpleNamespace(api_version=5)
        request = TxnOffsetCommitRequest(
            transactional_id="x", group_id="g", producer_id=PRODUCER, producer_epoch=1, topics=[]
        )
        await handlers.commit_offsets(context, request)

    asyncio.run(ask())
    assert outcomes == [ErrorCode.none]
    assert not checks.count


@pytest.mark.parametrize(("epoch", "version"), [(0, 0), (1, 0), (2, 2)])
def test_a_marker_that_may_end_the_transaction_refuses_the_batch(
    house: GuardedPartition, epoch: int, version: int
) -> None:
    """A guard of epoch 1 stays valid only after a marker of epoch 1 and version 2."""
    assert house.append(batch(0), house.guard()) is ErrorCode.none
    partition = house.partition

    async def end(participation: Participation) -> None:
        await partition.transactions.write_marker(TransactionMarker(PRODUCER, epoch, False, 0, version))

    appends = TransactionalAppends(end, UnexpectedErrors())

    async def ask() -> ErrorCode:
        answer = appends.append(
            partition, batch(0, epoch=1), TransactionalProduce("x", JOINING_VERSION, 1, 1000)
        )
        return (answer if isinstance(answer, AppendOutcome) else await answer).error

    assert asyncio.run(ask()) in (ErrorCode.invalid_txn_state, ErrorCode.invalid_producer_epoch)
