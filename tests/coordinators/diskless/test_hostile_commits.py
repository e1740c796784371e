"""CommitFile and CommitParts requests with invalid content. Each request gets one error, and the coordinator
continues."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from diskless_house import TOPIC, House, batch, file, topic

from moldau.coordinators.diskless.calls import BatchToCommit
from moldau.coordinators.diskless.calls.subjects.commit import (
    COMMIT_FILE,
    REQUEST_BATCHES_MAX,
    batches_of,
)
from moldau.coordinators.diskless.calls.subjects.commit_parts import COMMIT_PARTS
from moldau.coordinators.diskless.calls.subjects.files import DESCRIBE_FILES, FILES_MAX
from moldau.coordinators.diskless.codecs.batch_columns import decode_batches, decode_results, encode_batches
from moldau.coordinators.diskless.codecs.columns import ColumnError, put_varint
from moldau.protocol.own.diskless.commit_file import DisklessCommitBatch, DisklessCommitFileRequest
from moldau.protocol.own.diskless.commit_parts import DisklessCommitPart, DisklessCommitPartsRequest
from moldau.protocol.own.diskless.describe_files import DisklessDescribeFilesRequest
from moldau.runtime import ErrorCode, KafkaError

EXTREMES = (-(2**77), -(2**63), -(2**31), -1, 0, 1, 2**15, 2**31, 2**40, 2**62, 2**63 - 1, 2**76)


def equal_batches(count: int) -> bytes:
    """The encoded columns of ``count`` equal batches. Equal values need no bytes for each batch, so the size
    does not depend on ``count``."""
    out = bytearray()
    put_varint(out, count)
    put_varint(out, 1)
    out += TOPIC.bytes
    put_varint(out, 1)
    for low in (-1, -1, 0, 0, 0, 0, 0, 100, 0, 5000, 0, -1, 1, 0, 0):
        put_varint(out, low)
        out.append(0)
    return bytes(out)


def commit_file(columns: bytes) -> Any:
    request = DisklessCommitFileRequest(object_key="f", file_size=1, columns=columns)
    return COMMIT_FILE.arguments(request)


def commit_parts(*columns: bytes) -> Any:
    parts = [DisklessCommitPart(coordinator_id=at, columns=one) for at, one in enumerate(columns)]
    request = DisklessCommitPartsRequest(
        object_key="f", file_size=1, created_ms=1, uploader_broker_id=1, parts=parts
    )
    return COMMIT_PARTS.arguments(request)


def test_the_encoded_size_of_equal_batches_does_not_depend_on_their_number() -> None:
    assert decode_batches(equal_batches(3)) == [batch(0, at=100 * at) for at in range(3)]
    assert len(equal_batches(REQUEST_BATCHES_MAX)) < 70


@pytest.mark.parametrize("count", [REQUEST_BATCHES_MAX + 1, 10**9, 10**20])
@pytest.mark.parametrize("read", [commit_file, commit_parts])
def test_a_file_with_too_many_batches_is_refused_before_they_are_made(
    read: Callable[[bytes], Any], count: int
) -> None:
    with pytest.raises(KafkaError, match="items, which must be from 0 to 5000") as refused:
        read(equal_batches(count))
    assert refused.value.code is ErrorCode.invalid_request


def test_the_older_form_has_the_same_maximum() -> None:
    row = DisklessCommitBatch(
        topic_id=TOPIC, partition_index=0, byte_offset=0, size=100, last_offset=0, batch_max_timestamp=5000
    )
    rows = [row] * (REQUEST_BATCHES_MAX + 1)
    with pytest.raises(KafkaError, match="at most 5000 batches") as refused:
        COMMIT_FILE.arguments(DisklessCommitFileRequest(object_key="f", file_size=1, batches=rows))
    assert refused.value.code is ErrorCode.invalid_request


@pytest.mark.parametrize("number", [2**62 + 1, 2**63 - 1])
def test_a_number_without_a_successor_is_refused(number: int) -> None:
    request = DisklessCommitFileRequest(
        object_key="f", file_size=1, columns=equal_batches(1), commit_number=number, open_from=number
    )
    with pytest.raises(KafkaError, match="above the highest commit number") as refused:
        COMMIT_FILE.arguments(request)
    assert refused.value.code is ErrorCode.invalid_request


@pytest.mark.parametrize("limit", [-1, 0, FILES_MAX + 1, 2**31 - 1])
def test_a_list_of_files_has_a_limit(limit: int) -> None:
    with pytest.raises(KafkaError, match="from 1 to 10000") as refused:
        DESCRIBE_FILES.arguments(DisklessDescribeFilesRequest(limit=limit))
    assert refused.value.code is ErrorCode.invalid_request


def test_a_file_without_parts_is_refused() -> None:
    with pytest.raises(KafkaError, match="no parts") as refused:
        commit_parts()
    assert refused.value.code is ErrorCode.invalid_request


def test_the_parts_of_a_file_share_its_maximum() -> None:
    half = equal_batches(REQUEST_BATCHES_MAX // 2)
    assert sum(len(call.batches) for _, call in commit_parts(half, half)) == REQUEST_BATCHES_MAX
    with pytest.raises(KafkaError, match="items, which must be from 0 to 0"):
        commit_parts(half, half, equal_batches(1))


@pytest.mark.parametrize("number", [-1, 1, 2**40])
def test_a_batch_of_an_unlisted_topic_or_producer_is_refused(number: int) -> None:
    columns = bytearray()
    put_varint(columns, number)
    given = equal_batches(2)
    head = 1 + 1 + 16 + 1 + 4
    for at in (head, head + 2):  # the position of the topic's index, and the position of the producer's index
        with pytest.raises(ColumnError, match="a value is not between 0 and 0"):
            decode_batches(given[:at] + bytes(columns) + given[at + 1 :])


def test_results_are_bounded_too() -> None:
    out = bytearray()
    put_varint(out, 10**9)
    with pytest.raises(ColumnError, match="items"):
        decode_results(bytes(out) + bytes(20))


def test_no_value_of_a_field_stops_a_coordinator(tmp_path: Path) -> None:
    """Each field of a batch gets extreme values. The request or the batch is refused, and the coordinator
    then commits the next valid file. After a restart the log loads."""

    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic(1)])
        end = 0
        for field in BatchToCommit._fields:
            for value in EXTREMES if field != "topic_id" else ():
                for good in (batch(), batch(producer=(7, 0, 0))):
                    end += await _committed(
                        service, f"{field} {value} {good.producer_id}", good, field, value
                    )
                    assert service.is_active(0)
        found = await service.commit_file(0, file("last", batch()))
        assert [one.base_offset for one in found.batches] == [end]
        await house.stop()
        service = await house.start()
        assert service.is_active(0)
        found = await service.commit_file(0, file("after", batch()))
        assert [one.base_offset for one in found.batches] == [end + 1]
        await house.stop()

    asyncio.run(asyncio.wait_for(scene(), 600))


async def _committed(service: Any, key: str, good: BatchToCommit, field: str, value: int) -> int:
    """Commit a file with one batch in which a field is changed. Returns the number of its records that were
    committed."""
    odd = good._replace(**{field: value})
    try:
        batches = batches_of(encode_batches([odd]))
    except (ColumnError, KafkaError):
        return 0
    call = file(key)
    result = await service.commit_file(0, type(call)(key, 100, call.created_ms, 1, batches))
    [one] = result.batches
    assert one.error is not ErrorCode.unknown_server_error
    return batches[0].records_count if one.error is ErrorCode.none and not one.is_duplicate else 0
