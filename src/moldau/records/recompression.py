"""Recompression of produced batches to the topic's codec (``compression.type``).

The records keep their bytes. The header keeps all fields except the codec, the length and the checksum. The
max timestamp and the offset deltas are corrected if the producer set them wrongly.
"""

from typing import NamedTuple

from moldau.records.batch import COMPRESSION_MASK, DELETE_HORIZON_BIT, BatchHeader
from moldau.records.compression import Compression, compress_in_turn
from moldau.records.rewriting import assemble_batch
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.steps import Steps

__all__ = ["TargetCompression", "recompressed"]


class TargetCompression(NamedTuple):
    """The codec of a topic, and its level on the scale of :func:`moldau.records.compression.compress`."""

    codec: Compression
    level: int | None = None

    def changes(self, header: BatchHeader) -> bool:
        """Whether a batch must be recompressed. A batch with the codec of the topic is not recompressed, even
        if its compression level differs from the topic's level.
        """
        return header.attributes & COMPRESSION_MASK != self.codec


def recompressed(
    header: BatchHeader,
    payload: bytes,
    max_timestamp: int,
    target: TargetCompression,
    max_batch_bytes: int,
) -> Steps[bytes]:
    """Compress the uncompressed records ``payload`` by the codec of ``target``. Returns a batch with these
    records and the fields of ``header``.

    Raises ``MESSAGE_TOO_LARGE`` when the result is larger than ``max_batch_bytes``.
    """
    compressed = yield from compress_in_turn(target.codec, payload, target.level)
    changed = assemble_batch(
        header,
        header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT) | target.codec,
        header.base_timestamp,
        max_timestamp,
        header.records_count,
        compressed,
    )
    if len(changed) > max_batch_bytes:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"the batch has {len(changed)} bytes once it is stored as {target.codec.name.lower()},"
            f" the topic allows {max_batch_bytes}",
        )
    return changed
