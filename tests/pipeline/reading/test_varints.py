"""Varints of any length are decoded in parallel."""

import pytest

pytest.importorskip("numpy", reason="needs NumPy: pip install 'moldau[spark]'")

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moldau.pipeline.reading.varints import PADDING_BYTES, read_varints
from moldau.records.errors import InvalidRecordError
from moldau.records.varint import encode_varint

EDGES = [0, -1, 63, 64, -64, -65, 8191, 8192, -8192, -8193, 2**31 - 1, -(2**31)]
short = st.integers(-64, 63)
numbers = st.one_of(short, st.sampled_from(EDGES), st.integers(-(2**31), 2**31 - 1))


def encoded(values: list[int]) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """The bytes of all numbers, and the start and the end of each number."""
    content = bytearray()
    ends = []
    for value in values:
        content += encode_varint(value)
        ends.append(len(content))
    starts = np.array([0, *ends[:-1]][: len(values)], np.int64)
    return np.frombuffer(bytes(content) + bytes(PADDING_BYTES), np.uint8), starts, ends


@given(st.one_of(st.lists(short, max_size=40), st.lists(numbers, max_size=40)))
def test_numbers_of_many_lengths_are_read_in_parallel(values: list[int]) -> None:
    data, starts, ends = encoded(values)
    for bits in (32, 64):
        found, behind = read_varints(data, starts, bits)
        assert found.tolist() == values
        assert behind.tolist() == ends


def test_a_number_of_too_many_bits_is_refused_among_others() -> None:
    data, starts, _ = encoded([1, 2**31, 300])
    assert read_varints(data, starts)[0].tolist() == [1, 2**31, 300]
    with pytest.raises(InvalidRecordError, match="more than 32 bits"):
        read_varints(data, starts, 32)
