"""Producers whose epochs are used up: the next id takes over, and the last epoch is for fencing only."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from transaction_model import TransactionModel

from moldau.coordinators.transactions.codec import TransactionRecord
from moldau.coordinators.transactions.states import TransactionPhase
from moldau.coordinators.transactions.transaction import EPOCH_MAX, ProducerIdentity, TxnPartition
from moldau.runtime import ErrorCode, KafkaError


def _exhausted() -> tuple[TransactionModel, tuple[int, int]]:
    """A producer with the last epoch that a client may have, in a transaction of version 2."""
    model = TransactionModel()
    producer_id = model.init("a").producer_id
    value = replace(model.shard.by_id["a"], producer_epoch=EPOCH_MAX - 1)
    model.put(TransactionRecord("a", value))
    model.add("a", (producer_id, EPOCH_MAX - 1), [("t", 0)], version=2)
    return model, (producer_id, EPOCH_MAX - 1)


def _code(call: Callable[[], Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        call()
    return refused.value.code


def test_the_next_id_waits_for_the_markers_of_the_last_one() -> None:
    model, producer = _exhausted()
    answer = model.end("a", producer, committed=True, version=2)
    new = (answer.producer_id, answer.producer_epoch)
    assert new == (producer[0] + 1, 0)
    place = TxnPartition("t", 0)
    assert _code(lambda: model.add("a", new, [("t", 1)], version=2)) is ErrorCode.concurrent_transactions
    assert _code(lambda: model.init("a", expected=new)) is ErrorCode.concurrent_transactions
    assert (
        _code(lambda: model.shard.verify("a", ProducerIdentity(*new), [place]))
        is ErrorCode.concurrent_transactions
    )
    # The one that has given way is not spared.
    assert _code(lambda: model.add("a", producer, [("t", 1)], version=2)) is ErrorCode.producer_fenced
    model.complete()
    model.add("a", new, [("t", 1)], version=2)
    assert model.shard.by_id["a"].state is TransactionPhase.ONGOING
