"""A batch may be too large when it is opened. The error that reports this keeps no decompressed bytes in
memory."""

from collections.abc import Iterator
from types import FrameType

import cramjam
import pytest

from moldau.records.compression import Compression, compress, decompress
from moldau.records.errors import InvalidRecordError, OpenedSizeError

LARGE = 1 << 20
LIMIT = 4 * LARGE
ZEROS = bytes(8 * LARGE)


def _frames(error: BaseException | None) -> Iterator[FrameType]:
    """Yield the frames of an error and of the errors that caused it, without the frames of this module."""
    while error is not None:
        at = error.__traceback__
        while at is not None:
            if at.tb_frame.f_code.co_filename != __file__:
                yield at.tb_frame
            at = at.tb_next
        error = error.__cause__ or error.__context__


def _kept(error: BaseException) -> list[str]:
    """Large local variables that the tracebacks of an error keep in memory."""
    return [
        f"{frame.f_code.co_name}: {name}"
        for frame in _frames(error)
        for name, value in frame.f_locals.items()
        if isinstance(value, bytes | bytearray | memoryview) and len(value) >= LARGE
    ]


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.NONE])
def test_the_error_of_a_too_large_batch_keeps_no_bytes(codec: Compression) -> None:
    bomb = compress(codec, ZEROS)
    assert len(bomb) < LARGE
    with pytest.raises(OpenedSizeError) as refusal:
        decompress(codec, bomb, LIMIT)
    assert _kept(refusal.value) == []


def test_the_error_of_a_too_large_snappy_block_keeps_no_bytes() -> None:
    with pytest.raises(OpenedSizeError) as refusal:
        decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(ZEROS)), LIMIT)
    assert _kept(refusal.value) == []


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_the_error_of_a_damaged_batch_keeps_no_bytes(codec: Compression) -> None:
    damaged = bytearray(compress(codec, ZEROS))
    damaged[len(damaged) // 2 :] = b"\xff" * (len(damaged) - len(damaged) // 2)
    with pytest.raises(InvalidRecordError) as refusal:
        decompress(codec, bytes(damaged), 4 * len(ZEROS))
    assert _kept(refusal.value) == []
