"""Reads a cut and all its parts from an object store."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from crc32c import crc32c

from moldau.backup.cut_format import ClusterCut, LogPiece, LogPieces, ObjectPart
from moldau.backup.image_object import decode_image
from moldau.objects.storage import ObjectStorage, StorageError
from moldau.protocol.schema import Message

__all__ = ["metadata_of", "pieces_of", "problems_of", "read_part"]

_PARTS_AT_A_TIME: Final = 16
_ADVICE: Final = "an earlier state may be whole: see --until"


async def read_part(storage: ObjectStorage, part: ObjectPart) -> memoryview:
    """The bytes of a part. Raises ``StorageError`` if the store fails or if the bytes are damaged. The
    message names the object.
    """
    try:
        content = await storage.fetch(part.object_key, part.byte_offset, part.size_bytes)
    except StorageError as error:
        if error.transient:
            raise
        raise StorageError(f"{error}; {_ADVICE}", transient=False) from error
    if crc32c(content) != part.crc:
        raise StorageError(f"{part.object_key} is damaged: its checksum is wrong; {_ADVICE}", transient=False)
    return content


async def problems_of(storage: ObjectStorage, cut: ClusterCut) -> list[str]:
    """The reasons why a cut cannot be restored; an empty list if all its parts can be read."""
    places = asyncio.Semaphore(_PARTS_AT_A_TIME)

    async def problem(part: ObjectPart) -> str | None:
        async with places:
            try:
                await read_part(storage, part)
            except StorageError as error:
                return str(error)
            return None

    gaps = [
        f"{log.topic}-{log_id.partition}: {gap}"
        for log_id, log in cut.logs.items()
        if (gap := log.problem()) is not None
    ]
    parts = [cut.metadata, *(piece.part for log in cut.logs.values() for piece in log.pieces)]
    return gaps + [each for each in await asyncio.gather(*map(problem, parts)) if each is not None]


async def metadata_of(storage: ObjectStorage, cut: ClusterCut) -> Sequence[Message]:
    """The records that build the image of the metadata. Raises ``StorageError`` and ``KafkaError``."""
    return decode_image(await read_part(storage, cut.metadata))


async def pieces_of(storage: ObjectStorage, log: LogPieces) -> AsyncIterator[tuple[LogPiece, memoryview]]:
    """The pieces of a log in order, with their bytes. Raises ``StorageError``."""
    for piece in log.pieces:
        yield piece, await read_part(storage, piece.part)
