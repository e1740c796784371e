"""The order in which a restore commits objects."""

import uuid
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from moldau.backup.restore.commit_order import in_commit_order
from moldau.diskless.wal import WalBatch, WalObject, WalRun

TOPIC = uuid.UUID(int=1)


class Found(NamedTuple):
    name: str
    footer: WalObject


def _object(name: str, *batches: tuple[int, int]) -> Found:
    """Make an object with one batch for each pair of a producer id and its first sequence."""
    rows = tuple(_batch(producer_id, sequence) for producer_id, sequence in batches)
    return Found(name, WalObject(0, 1, 100, (WalRun(TOPIC, 0, 0, rows),)))


def _batch(producer_id: int, sequence: int, epoch: int = 0) -> WalBatch:
    return WalBatch(TOPIC, 0, 0, 100, 0, 1, 0, 0, producer_id, epoch, sequence, 0, 0)


def _names(found: list[Found]) -> str:
    return "".join(each.name for each in in_commit_order(found))


def test_an_object_waits_for_earlier_batches_of_its_producer() -> None:
    late = [_object("b", (7, 10)), _object("x", (8, 0)), _object("a", (7, 0)), _object("c", (7, 20))]
    assert _names(late) == "xabc"


def test_batches_of_a_later_epoch_wait_for_the_batches_of_earlier_epochs() -> None:
    # The producer increased its epoch, and its sequences began again at 0. The clock of the next broker is
    # slow.
    first, second = (
        Found(name, WalObject(0, 1, 100, (WalRun(TOPIC, 0, 0, (_batch(7, sequence, epoch),)),)))
        for name, sequence, epoch in (("a", 10, 0), ("b", 0, 1))
    )
    assert _names([second, first]) == "ab"


def test_objects_without_idempotent_producers_keep_their_order() -> None:
    assert _names([_object("b", (-1, -1)), _object("a"), _object("c", (-1, -1))]) == "bac"


def test_objects_that_wait_for_each_other_are_still_committed() -> None:
    assert sorted(_names([_object("a", (1, 5), (2, 0)), _object("b", (1, 0), (2, 5))])) == ["a", "b"]


def test_a_repeated_batch_does_not_stop_the_others() -> None:
    assert _names([_object("a", (1, 0)), _object("b", (1, 0)), _object("c", (1, 1))]) == "abc"


@given(st.permutations(range(6)), st.permutations(range(6)))
def test_every_producer_is_committed_in_order(first: list[int], second: list[int]) -> None:
    found = [
        _object(f"{a}{b}", (1, a)) if a % 2 else _object(f"{a}{b}", (2, b))
        for a, b in zip(first, second, strict=True)
    ]
    ordered = in_commit_order(found)
    assert sorted(each.name for each in ordered) == sorted(each.name for each in found)
    for producer_id in (1, 2):
        sequences = [
            batch.base_sequence
            for each in ordered
            for batch in each.footer.batches()
            if batch.producer_id == producer_id
        ]
        assert sequences == sorted(sequences)
