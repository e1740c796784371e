"""How responses of an S3 server are handled, and how the memory for uploads is reused. The responses of the
server follow a script."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from storage_fakes import machine

from moldau.metrics import Meters
from moldau.objects import (
    ObjectNotFoundError,
    RetryingStorage,
    RetryPolicy,
    StorageError,
    StorageSettings,
    StorageTimeoutError,
    ThrottledError,
    open_storage,
)

IMPATIENT = RetryPolicy(first_backoff_ms=1, max_backoff_ms=1, attempt_timeout_ms=200, deadline_ms=200)
PATIENT = RetryPolicy(first_backoff_ms=1, max_backoff_ms=1, attempt_timeout_ms=30_000, deadline_ms=30_000)
"""Settings for retries. The time limit is long enough for a busy machine, so the attempts end only when the
number of retries is used up.
"""


@asynccontextmanager
async def server(
    status: int | None, code: str, *, policy: RetryPolicy | None = None
) -> AsyncIterator[RetryingStorage]:
    """A store whose server responds to every request with this status and S3 error code. With None, the
    server reads requests and never responds."""
    policy = policy or (IMPATIENT if status is None else PATIENT)
    body = f"<Error><Code>{code}</Code><Message>Because\nso.</Message></Error>".encode() if code else b""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        if status is not None:
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await reader.readexactly(int(line.split(b":")[1]))
            writer.write(
                b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
                % (status, len(body), body)
            )
            await writer.drain()
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    options = {
        "endpoint": f"http://127.0.0.1:{port}",
        "access.key.id": "key",
        "secret.access.key": "secret",
        "path.style": "true",
    }
    try:
        yield open_storage(
            StorageSettings("s3://bucket/prefix", options=options), machine(), Meters(), policy=policy
        )
    finally:
        for writer in writers:
            writer.close()
        listening.close()


@pytest.mark.parametrize(
    ("status", "code", "kind", "transient"),
    [
        (503, "SlowDown", ThrottledError, True),
        (429, "", ThrottledError, True),
        (500, "InternalError", StorageError, True),
        (503, "", StorageError, True),
        (403, "InvalidAccessKeyId", StorageError, False),
        (401, "", StorageError, False),
        (404, "NoSuchBucket", StorageError, False),
        (404, "NoSuchKey", ObjectNotFoundError, False),
        (416, "InvalidRange", StorageError, False),
        (400, "InvalidRequest", StorageError, False),
        (None, "", StorageTimeoutError, True),
    ],
)
def test_answers_become_errors_of_the_right_kind(
    status: int | None, code: str, kind: type[StorageError], transient: bool
) -> None:
    async def main() -> None:
        async with server(status, code) as storage:
            with pytest.raises(StorageError) as caught:
                await storage.fetch("some/key", 0, 10)
        error = caught.value
        assert type(error) is kind
        assert error.transient is transient
        assert "\n" not in str(error)
        assert code in str(error) or kind in (ObjectNotFoundError, StorageTimeoutError)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "InvalidAccessKeyId", "access denied: InvalidAccessKeyId: Because so."),
        (404, "NoSuchBucket", "the bucket or container does not exist"),
        (503, "SlowDown", "SlowDown"),
        (None, "", "no answer in time"),
    ],
)
def test_a_check_that_fails_is_one_line_with_the_name_of_the_store(
    status: int | None, code: str, said: str
) -> None:
    async def main() -> None:
        async with server(status, code) as storage:
            with pytest.raises(StorageError, match="cannot use object storage s3://bucket/prefix") as caught:
                await storage.check()
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)

    asyncio.run(main())


def test_the_memory_of_an_upload_is_locked_while_the_library_reads_it() -> None:
    """While the library reads the memory of an upload, Python must not resize this memory. The code that
    reuses the memory depends on this rule."""

    async def main() -> None:
        policy = RetryPolicy(attempt_timeout_ms=60_000, deadline_ms=60_000)
        async with server(None, "", policy=policy) as storage:
            arena = bytearray(8 << 20)
            upload = asyncio.create_task(storage.upload("a", memoryview(arena)[: 4 << 20], 4 << 20))
            await asyncio.sleep(0.05)
            with pytest.raises(BufferError):
                arena.pop()
            upload.cancel()
            await asyncio.gather(upload, return_exceptions=True)
            del upload
            for _ in range(6_000):
                try:
                    arena.pop()
                    return
                except BufferError:
                    await asyncio.sleep(0.01)
            raise AssertionError("the memory of a cancelled upload was never let go of")

    asyncio.run(main())
