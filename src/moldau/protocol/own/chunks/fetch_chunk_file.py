"""FetchChunkFile: read the files of an inactive chunk's folder, for a broker that copies the chunk.

Without a name, the response lists the files. With a name, the response contains bytes of that file.
"""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class ChunkFile(Message):
    name: str = wire("string")
    size_bytes: int = wire("int64")


@message
class FetchChunkFileRequest(Message):
    API_KEY = 11147
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    start_offset: int = wire("int64")
    """The first offset of the chunk, which identifies the chunk."""
    name: str = wire("string", default="")
    """The name of the file. It is empty if the list of files is requested."""
    position: int = wire("int64", default=0)
    max_bytes: int = wire("int32", default=0)
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time for which the caller waits for the answer."""


@message
class FetchChunkFileResponse(Message):
    API_KEY = 11147
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    files: Sequence[ChunkFile] = wire([ChunkFile], default=())
    content: bytes = wire("bytes", default=b"")
    checksum: int = wire("uint32", default=0)
    """CRC-32C of the content, as it was read from the disk."""


REQUEST = FetchChunkFileRequest
RESPONSE = FetchChunkFileResponse
