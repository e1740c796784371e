"""AddPartitionsToTxn requests of brokers. If a partition has joined the transaction, its row in the response
has no error."""

import asyncio
from types import SimpleNamespace
from typing import Any

from moldau.network.authorization import AllowEveryone
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode
from moldau.server.handlers.transactions import TransactionHandlers

NONE, UNKNOWN = ErrorCode.none, ErrorCode.unknown_topic_or_partition


def answered(*partitions: int) -> tuple[dict[int, ErrorCode], list[TopicPartition]]:
    """Request to add these partitions of a topic that has two partitions. Returns the error code of each
    partition, and the partitions that were added."""
    added: list[TopicPartition] = []

    async def add_partitions(
        _name: str, _producer: Any, wanted: list[TopicPartition], _version: int, *, may_wait: bool
    ) -> None:
        assert not may_wait, "other requests of the broker would wait, too"
        added.extend(wanted)

    image = SimpleNamespace(topics={"t": SimpleNamespace(partitions=[None, None])})
    unused: Any = None
    service: Any = SimpleNamespace(add_partitions=add_partitions)
    view: Any = SimpleNamespace(image=image)
    handlers = TransactionHandlers(service, unused, unused, view, AllowEveryone())
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id="a",
                producer_id=1,
                producer_epoch=0,
                topics=[AddPartitionsToTxnTopic(name="t", partitions=list(partitions))],
            )
        ]
    )
    context: Any = SimpleNamespace(api_version=5, api_key=24)
    answer = asyncio.run(handlers.add_partitions(context, request))
    (topic,) = answer.results_by_transaction[0].topic_results
    return {row.partition_index: row.partition_error_code for row in topic.results_by_partition}, added


def test_added_partitions_are_answered_without_an_error() -> None:
    assert answered(0, 1) == ({0: NONE, 1: NONE}, [TopicPartition("t", 0), TopicPartition("t", 1)])


def test_no_partition_is_added_if_one_of_them_is_unknown() -> None:
    assert answered(0, 2) == ({0: ErrorCode.operation_not_attempted, 2: UNKNOWN}, [])
