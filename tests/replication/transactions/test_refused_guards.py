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
from moldau.replication.partition_interface import AppendOutcome
from moldau.runtime import ErrorCode, KafkaError, UnexpectedErrors
from moldau.server.handlers.records.transaction_markers import Participation, TransactionalHandlers
from moldau.server.handlers.records.transactional_appends import TransactionalAppends, TransactionalProduce


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
