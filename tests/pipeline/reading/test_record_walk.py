"""There are several ways to find the records of a batch. All of them have the same result."""

import pytest

pytest.importorskip("numpy", reason="needs NumPy: pip install 'moldau[spark]'")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.pipeline.reading import record_walk
from moldau.pipeline.reading.record_walk import IN_STEP_COST, find_records
from moldau.pipeline.reading.varints import PADDING_BYTES
from moldau.records.builder import encode_record
from moldau.records.errors import InvalidRecordError

sizes = st.one_of(st.integers(0, 300), st.sampled_from([70, 70, 70, 5_000, 20_000]))


def records_of(lengths: list[int]) -> list[bytes]:
    return [encode_record(index, 0, None, b"v" * length) for index, length in enumerate(lengths)]


def found(batches: list[bytes], counts: list[int]) -> list[tuple[int, int]]:
    data = memoryview(bytearray(b"".join([*batches, bytes(PADDING_BYTES)])))
    starts, ends = find_records(data, [len(batch) for batch in batches], np.array(counts, np.int64))
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def expected(batches: list[list[bytes]]) -> list[tuple[int, int]]:
    spans, position = [], 0
    for record in (record for batch in batches for record in batch):
        end = position + len(record)
        prefix = 1 if len(record) - 1 < 64 else 2 if len(record) - 2 < 8192 else 3
        spans.append((position + prefix, end))
        position = end
    return spans


@settings(max_examples=60)
@given(st.lists(sizes, max_size=60), st.integers(1, 40))
def test_few_batches_are_walked_one_by_one(lengths: list[int], repeats: int) -> None:
    batches = [records_of(lengths), records_of([70] * repeats + lengths[:3]), []]
    joined = [b"".join(batch) for batch in batches]
    assert found(joined, [len(batch) for batch in batches]) == expected(batches)


@settings(max_examples=25)
@given(st.lists(st.lists(sizes, max_size=4), min_size=3, max_size=6))
def test_many_batches_are_walked_at_the_same_time(lists: list[list[int]]) -> None:
    batches = [records_of(lengths) for lengths in lists] * IN_STEP_COST
    counts = [len(batch) for batch in batches]
    if not sum(counts):
        return
    assert max(counts) * IN_STEP_COST < sum(counts) or len({*counts}) > 1
    assert found([b"".join(batch) for batch in batches], counts) == expected(batches)


def test_records_of_one_size_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[int] = []
    walk = record_walk._walk_one_by_one

    def counted(data: bytes, position: int, count: int, positions: list[int]) -> int:
        walked.append(count)
        return walk(data, position, count, positions)

    monkeypatch.setattr(record_walk, "_walk_one_by_one", counted)
    batch = records_of([70] * 2_000)
    assert found([b"".join(batch)], [len(batch)]) == expected([batch])
    assert sum(walked) < 200


@pytest.mark.parametrize("copies", [1, 3 * IN_STEP_COST])
@pytest.mark.parametrize(
    ("content", "count"),
    [
        (b"".join(records_of([5, 5])), 3),
        (b"".join(records_of([5, 5])), 1),
        (b"".join(records_of([5, 5]))[:-1], 2),
        (b"\x01" + b"".join(records_of([20, 5])), 2),
        (b"\x02" * 40, 20),
        (b"", 1),
    ],
)
def test_batches_with_wrong_counts_or_lengths_are_refused(content: bytes, count: int, copies: int) -> None:
    good = b"".join(records_of([5, 5]))
    with pytest.raises(InvalidRecordError):
        found([good] * (copies - 1) + [content], [2] * (copies - 1) + [count])
