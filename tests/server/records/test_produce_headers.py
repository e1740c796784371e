"""Every field of a batch's header is set to values at its limits and beyond them, on each path of a produce
request.

The expected errors are the errors of Kafka's broker (``validate_produce`` names the exceptions). Requests for
one partition use the fast path, and requests for several partitions use the general path. Both kinds of
requests are sent to classic and to diskless topics.
"""

import asyncio
import struct
import time
from collections.abc import Iterator

import pytest
from crc32c import crc32c
from plain_requests import Requests, records, unpack, values

from moldau.coordinators.diskless.state import commit
from moldau.protocol.messages import list_offsets as listing
from moldau.records import build_batch
from moldau.records.batch import parse_header
from moldau.runtime import ErrorCode
from moldau.testing import Node

BASE_OFFSET, LENGTH, LEADER_EPOCH, MAGIC = (">q", 0), (">i", 8), (">i", 12), (">b", 16)
ATTRIBUTES, LAST_OFFSET_DELTA, BASE_TIMESTAMP = (">h", 21), (">i", 23), (">q", 27)
MAX_TIMESTAMP, PRODUCER_ID, PRODUCER_EPOCH = (">q", 35), (">q", 43), (">h", 51)
BASE_SEQUENCE, RECORDS_COUNT = (">i", 53), (">i", 57)
GOOD = build_batch(records(b"v"))
DAY_MS = 86_400_000

OK = ErrorCode.none
INVALID, CORRUPT = ErrorCode.invalid_record, ErrorCode.corrupt_message
TOO_LARGE = ErrorCode.message_too_large
STALE = ErrorCode.invalid_producer_epoch
BAD_TIME = ErrorCode.invalid_timestamp
NO_TRANSACTION = ErrorCode.transactional_id_authorization_failed
"""The error for a request that contains no transactional id."""

Field = tuple[str, int]
Change = dict[Field, int]


def producer(producer_id: int, epoch: int, sequence: int) -> Change:
    return {PRODUCER_ID: producer_id, PRODUCER_EPOCH: epoch, BASE_SEQUENCE: sequence}


TABLE: list[tuple[str, Change, ErrorCode]] = [
    ("unchanged", {}, OK),
    ("base offset 1", {BASE_OFFSET: 1}, INVALID),
    ("base offset -1", {BASE_OFFSET: -1}, INVALID),
    ("base offset 2^63-1", {BASE_OFFSET: 2**63 - 1}, INVALID),
    ("length 1 too large", {LENGTH: len(GOOD) - 11}, INVALID),
    ("length 1 too small", {LENGTH: len(GOOD) - 13}, INVALID),
    ("length below a header", {LENGTH: 48}, CORRUPT),
    ("length -1", {LENGTH: -1}, CORRUPT),
    ("length 2^31-1", {LENGTH: 2**31 - 1}, INVALID),
    *((f"leader epoch {n}", {LEADER_EPOCH: n}, OK) for n in (-(2**31), -1, 7, 2**31 - 1)),
    *((f"magic {n}", {MAGIC: n}, INVALID) for n in (0, 1)),
    *((f"magic {n}", {MAGIC: n}, CORRUPT) for n in (-128, -1, 3, 127)),
    *((f"codec {n}", {ATTRIBUTES: n}, INVALID) for n in (5, 6, 7)),
    ("LogAppendTime", {ATTRIBUTES: 1 << 3}, BAD_TIME),
    ("transactional", {ATTRIBUTES: 1 << 4}, NO_TRANSACTION),
    ("transactional with a producer", {ATTRIBUTES: 1 << 4, **producer(5, 0, 0)}, NO_TRANSACTION),
    ("control", {ATTRIBUTES: 1 << 5}, INVALID),
    ("control and transactional", {ATTRIBUTES: 3 << 4, **producer(5, 0, 0)}, NO_TRANSACTION),
    *((f"attribute bit {bit}", {ATTRIBUTES: 1 << bit}, OK) for bit in range(6, 15)),
    ("attribute bit 15", {ATTRIBUTES: -(2**15)}, OK),
    ("all unused attribute bits", {ATTRIBUTES: ~0x7F}, OK),
    ("all attribute bits", {ATTRIBUTES: -1}, NO_TRANSACTION),
    *((f"last offset delta {n}", {LAST_OFFSET_DELTA: n}, INVALID) for n in (-(2**31), -1, 1, 2**31 - 1)),
    *((f"count {n}", {RECORDS_COUNT: n}, INVALID) for n in (-(2**31), -1, 0, 2, 2**31 - 1)),
    ("count 0 without offsets", {RECORDS_COUNT: 0, LAST_OFFSET_DELTA: -1}, INVALID),
    ("10 records claimed", {RECORDS_COUNT: 10, LAST_OFFSET_DELTA: 9}, INVALID),
    ("2^31-1 records claimed", {RECORDS_COUNT: 2**31 - 1, LAST_OFFSET_DELTA: 2**31 - 2}, TOO_LARGE),
    *((f"base timestamp {n}", {BASE_TIMESTAMP: n}, OK) for n in (-(2**63), -2, -1, 0, 2**63 - 1)),
    *((f"max timestamp {n}", {MAX_TIMESTAMP: n}, OK) for n in (-(2**63), -2, -1, 0)),
    ("max timestamp 2^63-1", {MAX_TIMESTAMP: 2**63 - 1}, BAD_TIME),
    ("max timestamp tomorrow", {MAX_TIMESTAMP: int(time.time() * 1000) + DAY_MS}, BAD_TIME),
    ("no producer, any sequence", producer(-1, -1, 7), OK),
    ("no producer, any epoch", producer(-1, 7, -1), OK),
    ("no producer, least values", producer(-(2**63), -(2**15), -(2**31)), OK),
    ("no producer, largest values", producer(-2, 2**15 - 1, 2**31 - 1), OK),
    ("producer 0", producer(0, 0, 0), OK),
    ("largest producer", producer(2**63 - 1, 2**15 - 1, 2**31 - 1), OK),
    ("producer without sequence", producer(11, 0, -1), INVALID),
    ("producer with sequence -2^31", producer(11, 0, -(2**31)), INVALID),
    ("producer without epoch", producer(12, -1, 0), OK),
    ("producer without epoch, any sequence", producer(13, -1, 9), OK),
    ("producer with epoch -2", producer(14, -2, 0), STALE),
    ("producer with epoch -2^15", producer(14, -(2**15), 0), STALE),
    ("producer that begins late", producer(15, 3, 1_000), OK),
]


def changed(change: Change, batch: bytes = GOOD) -> bytes:
    """The batch with changed header fields and the right CRC."""
    content = bytearray(batch)
    for (layout, position), value in change.items():
        struct.pack_into(layout, content, position, value)
    struct.pack_into(">I", content, 17, crc32c(content[21:]))
    return bytes(content)


@pytest.fixture(autouse=True)
def _believing_coordinators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Normally a diskless coordinator waits for the first batch of an unknown producer. In these tests it
    does not wait."""
    monkeypatch.setattr(commit, "BELIEF_MS", 0)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(diskless=True) as running:
        yield running


@pytest.fixture
def clients(node: Node) -> str:
    return node.bootstrap_servers


def test_each_value_of_each_field_gets_the_same_error_on_all_paths(clients: str) -> None:
    async def story() -> None:
        async with Requests(clients) as client, asyncio.timeout(200):
            for kind in ("classic", "diskless"):
                for way in ("short", "long"):
                    diskless = str(kind == "diskless").lower()
                    await client.create(f"{kind}-{way}", partitions=2, diskless_enable=diskless)
            found, expected = {}, {}
            for name, change, code in TABLE:
                batch = changed(change)
                for kind in ("classic", "diskless"):
                    short = await client.produce(f"{kind}-short", batch)
                    long = await client.produce_all(
                        {(f"{kind}-long", 0): batch, (f"{kind}-long", 1): GOOD}, timeout_ms=10_000
                    )
                    for way, row in (("short", short), ("long", long[f"{kind}-long", 0])):
                        found[name, kind, way], expected[name, kind, way] = row.error_code, code
                    assert long[f"{kind}-long", 1].error_code is OK, f"the neighbour of: {name}"
            assert found == expected

    asyncio.run(story())


def test_accepted_batches_are_read_back_as_they_were_sent(clients: str) -> None:
    """The batches are stored with all their attributes, and every request about them gets a response."""

    async def story() -> None:
        async with Requests(clients) as client, asyncio.timeout(200):
            for kind in ("classic", "diskless"):
                topic = f"{kind}-kept"
                await client.create(topic, diskless_enable=str(kind == "diskless").lower())
                kept = [(name, change) for name, change, code in TABLE if code is OK]
                for name, change in kept:
                    assert (await client.produce(topic, changed(change))).error_code is OK, name
                assert values(await client.read(topic, 0, len(kept))) == [b"v"] * len(kept)
                for offset, (name, change) in enumerate(kept):
                    fetched = await client.fetch(topic, offset, partition_max_bytes=1)
                    content = (
                        b"".join(fetched.records) if isinstance(fetched.records, list) else fetched.records
                    )
                    header, sent = parse_header(bytes(content)), parse_header(changed(change))
                    assert header == sent._replace(base_offset=offset, partition_leader_epoch=0), name
                    assert unpack(content)[0].offset == offset
                for timestamp in (-3, -2, -1, 0, 1_000, 2**62):
                    answer = await client.offset_at(topic, timestamp)
                    assert isinstance(answer, listing.ListOffsetsPartitionResponse)
                    assert answer.error_code is OK, (topic, timestamp, answer)

    asyncio.run(story())


def test_timestamps_beyond_64_bits_wrap(clients: str) -> None:
    """The second record is one millisecond after the largest timestamp of 64 bits. The addition overflows in
    Kafka and in Moldau."""

    async def story() -> None:
        async with Requests(clients) as client, asyncio.timeout(200):
            for kind, diskless in (("classic", "false"), ("diskless", "true")):
                two = changed({BASE_TIMESTAMP: 2**63 - 1}, build_batch(records(b"v", b"w", step_ms=1)))
                topic = f"{kind}-wrapping"
                await client.create(topic, diskless_enable=diskless)
                assert (await client.produce(topic, two)).error_code is OK
                found = await client.read(topic, 0, 2)
                assert [record.timestamp for record in found] == [2**63 - 1, -(2**63)]
                for timestamp in (-3, -1, 500):
                    answer = await client.offset_at(topic, timestamp)
                    assert answer.error_code is OK, (topic, timestamp, answer)
                # The batch is opened because the topic has its own codec. The timestamp of the first record
                # is too far in the future.
                topic = f"{kind}-recompressed"
                await client.create(topic, diskless_enable=diskless, compression_type="gzip")
                assert (await client.produce(topic, two)).error_code is BAD_TIME

    asyncio.run(story())


def test_a_producer_without_an_epoch_may_repeat_and_continue(clients: str) -> None:
    async def story() -> None:
        async with Requests(clients) as client, asyncio.timeout(200):
            for kind in ("classic", "diskless"):
                topic = f"{kind}-epochs"
                await client.create(topic, diskless_enable=str(kind == "diskless").lower())
                offsets = []
                for epoch, sequence in ((-1, 4), (-1, 4), (-1, 5), (-1, 90), (3, 7), (3, 8)):
                    answer = await client.produce(topic, changed(producer(21, epoch, sequence)))
                    assert answer.error_code is OK, (topic, epoch, sequence)
                    offsets.append(answer.base_offset)
                assert offsets == [0, 0, 1, 2, 3, 4]
                stale = await client.produce(topic, changed(producer(21, -1, 9)))
                assert stale.error_code is STALE

    asyncio.run(story())
