"""A broker reports a chunk once for each read that its own copy cannot serve."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
from damaged_copies import DamagedStore, StoreOfDamagedLogs, holder_of

from moldau.chunks.calls import ChunkFileFetch, ChunkRead, ChunkSearch
from moldau.chunks.holder import ChunkHolder
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.chunks.chunk_store import ChunkId
from moldau.storage.folders.partition_metadata import MalformedMetadataError

ID = ChunkId(UUID(int=1), 0, 0)
Call = Callable[[ChunkHolder], Awaitable[Any]]


async def read(holder: ChunkHolder) -> None:
    await holder.read("t", ChunkRead(*ID, 0, 100))


async def find(holder: ChunkHolder) -> None:
    await holder.find("t", ChunkSearch(*ID, 5), holder.lookup("t", 0))


CALLS: list[Call] = [
    read,
    find,
    lambda holder: holder.check("t", ID),
    lambda holder: holder.first_offset("t", ID),
    lambda holder: holder.open_offset("t", ID),
    lambda holder: holder.fetch_file(ChunkFileFetch(*ID)),
    lambda holder: holder.fetch_file(ChunkFileFetch(*ID, "f")),
]
FAILURES = (
    OSError("a bad disk"),
    MalformedMetadataError("t-0/partition.metadata", "a bad file"),
    KafkaError(ErrorCode.kafka_storage_error, "a bad copy"),
)


def failed(store: DamagedStore, call: Call) -> tuple[ErrorCode, list[Any]]:
    """The error of a call, and the chunks that were reported."""
    unreadable: list[Any] = []

    async def run() -> None:
        await call(holder_of(store, unreadable))

    with pytest.raises(KafkaError, match="a bad") as error:
        asyncio.run(run())
    return error.value.code, unreadable


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("failure", FAILURES, ids=["disk", "metadata", "copy"])
def test_a_copy_that_cannot_be_opened_is_reported(failure: Exception, call: Call) -> None:
    assert failed(DamagedStore(failure), call) == (ErrorCode.kafka_storage_error, [ID])


@pytest.mark.parametrize("call", [read, find], ids=["read", "find"])
@pytest.mark.parametrize("failure", [FAILURES[0], KafkaError(ErrorCode.corrupt_message, "a bad batch")])
def test_a_copy_whose_records_cannot_be_read_is_reported(failure: Exception, call: Call) -> None:
    code = failure.code if isinstance(failure, KafkaError) else ErrorCode.kafka_storage_error
    assert failed(StoreOfDamagedLogs(failure), call) == (code, [ID])


def test_an_error_that_says_nothing_about_the_copy_is_not_reported() -> None:
    failure = KafkaError(ErrorCode.unknown_topic_id, "a bad request")
    assert failed(DamagedStore(failure), read) == (ErrorCode.unknown_topic_id, [])


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
def test_a_good_copy_is_not_reported_when_descriptors_or_space_are_missing(number: int) -> None:
    missing = OSError(number, "a bad time")
    refused = KafkaError(ErrorCode.kafka_storage_error, "a bad time")
    refused.__cause__ = missing
    for failure in (missing, refused):
        assert failed(DamagedStore(failure), read) == (ErrorCode.kafka_storage_error, [])
