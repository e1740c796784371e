"""If the epochs of a producer id are used up, its producer gets a new id. The last epoch is used only to
fence producers."""

from collections.abc import Callable
from typing import Any

import pytest
from transaction_model import TransactionModel

from moldau.coordinators.transactions.codec import TransactionRecord
from moldau.coordinators.transactions.states import TransactionPhase
from moldau.coordinators.transactions.transaction import EPOCH_MAX, ProducerIdentity
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode, KafkaError


def _exhausted() -> tuple[TransactionModel, tuple[int, int]]:
    """A producer with the last epoch that a client may have, in a transaction of version 2."""
    model = TransactionModel()
    producer_id = model.init("a").producer_id
    value = model.shard.by_id["a"]._replace(producer_epoch=EPOCH_MAX - 1)
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
    place = TopicPartition("t", 0)
    assert not model.add("a", new, [("t", 1)], version=2)
    assert _code(lambda: model.init("a", expected=new)) is ErrorCode.concurrent_transactions
    assert (
        _code(lambda: model.shard.verify("a", ProducerIdentity(*new), [place]))
        is ErrorCode.concurrent_transactions
    )
    # The producer with the old id is fenced as usual.
    assert _code(lambda: model.add("a", producer, [("t", 1)], version=2)) is ErrorCode.producer_fenced
    model.complete()
    assert list(model.joins.values())[-1] is None
    assert model.shard.by_id["a"].state is TransactionPhase.ONGOING
    assert model.shard.by_id["a"].identity == new


def _end_after_a_timeout(model: TransactionModel, producer: tuple[int, int]) -> tuple[int, int]:
    model.wait(200_000)
    assert model.shard.by_id["a"].identity == (producer[0], EPOCH_MAX)
    model.complete()
    answer = model.end("a", producer, committed=False, version=2)
    return answer.producer_id, answer.producer_epoch


def test_a_producer_that_was_too_slow_continues_with_the_next_id() -> None:
    model, producer = _exhausted()
    new = _end_after_a_timeout(model, producer)
    assert new == (producer[0] + 1, 0)
    again = model.end("a", producer, committed=False, version=2)
    assert (again.producer_id, again.producer_epoch) == new
    model.restart()
    again = model.end("a", producer, committed=False, version=2)
    assert (again.producer_id, again.producer_epoch) == new
    model.add("a", new, [("t", 0)], version=2)
    assert model.end("a", new, committed=True, version=2).producer_epoch == 1


def test_no_client_has_the_last_epoch() -> None:
    model, producer = _exhausted()
    model.wait(200_000)
    model.complete()
    last = (producer[0], EPOCH_MAX)
    assert _code(lambda: model.add("a", last, [("t", 0)], version=2)) is ErrorCode.producer_fenced
    assert _code(lambda: model.end("a", last, committed=False, version=2)) is ErrorCode.producer_fenced
    assert _code(lambda: model.init("a", expected=last)) is ErrorCode.producer_fenced
    assert model.init("a").producer_epoch == 0
