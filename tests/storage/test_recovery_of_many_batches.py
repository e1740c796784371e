"""Recovery of a segment after a kill. The result is the same as if each batch was checked separately.
Recovery writes in large pieces."""

from hypothesis import given
from hypothesis import strategies as st
from memory_disk import MemoryDisk, MemoryFile

from moldau.records.batch import HEADER_SIZE_BYTES, check_batch
from moldau.records.builder import build_batch
from moldau.records.errors import CorruptRecordError
from moldau.records.record import Record
from moldau.storage.critical_logs.recovery_report import RecoveryReport
from moldau.storage.log.config import LogConfig
from moldau.storage.segments import batch_scan
from moldau.storage.segments.batch_scan import scan, scan_checked, scan_headers
from moldau.storage.segments.segment import MAX_RELATIVE_OFFSET, Segment
from moldau.storage.segments.segment_recovery import recover_segment

PATH = "/log/00000000000000000000.log"


def one_by_one(content):
    """The batches before the first bad batch. Each batch is checked separately."""
    found, position = [], 0
    while len(content) - position >= HEADER_SIZE_BYTES:
        try:
            header = check_batch(content, position)
        except CorruptRecordError:
            break
        found.append((position, header, content[position : position + header.size_bytes]))
        position += header.size_bytes
    return found


@st.composite
def logs(draw):
    """Bytes of a segment: batches of many sizes, possibly followed by damage and a partial batch."""
    offset, content = 0, bytearray()
    for size, epoch, producer_id in draw(
        st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2), st.sampled_from([-1, 7, 8])), max_size=40)
    ):
        content += build_batch(
            [Record(0, 1_000 + offset % 7, None, bytes(size))] * (1 + size % 3),
            base_offset=offset,
            leader_epoch=epoch,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=-1 if producer_id < 0 else offset,
        )
        offset += 1 + size % 3 + size % 2
    for at, byte in draw(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=2)):
        if at < len(content):
            content[at] = byte
    end = draw(st.integers(0, len(content)))
    return bytes(content[:end]) + bytes(draw(st.integers(0, 100)))


def file_of(content):
    disk = MemoryDisk()
    disk.open(PATH, create=True).write_at(0, [content])
    return disk, disk.open(PATH)


@given(logs(), st.sampled_from([61, 100, 300, 1024 * 1024]))
def test_a_scan_has_the_same_result_as_a_check_of_each_batch(content, chunk_bytes):
    before = batch_scan._CHECK_CHUNK_SIZE_BYTES
    batch_scan._CHECK_CHUNK_SIZE_BYTES = chunk_bytes
    try:
        _, file = file_of(content)
        found = [(at, header, bytes(batch)) for at, header, batch in scan_checked(file, 0, len(content))]
    finally:
        batch_scan._CHECK_CHUNK_SIZE_BYTES = before
    assert found == one_by_one(content)
    end = found[-1][0] + found[-1][1].size_bytes if found else 0
    headers = list(scan_headers(file, 0, end))
    assert headers == [(at, header) for at, header, _ in found]
    assert [at for at, _ in headers] == [sketch.position for sketch in scan(file, 0, end)]


@given(logs(), st.integers(0, 60))
def test_batches_that_recovery_accepts_are_durable_and_indexed(content, recovery_point):
    accepted, end_offset, epoch = 0, 0, -1
    for position, header, _ in one_by_one(content):
        if header.base_offset < end_offset or header.partition_leader_epoch < epoch:
            break
        if header.last_offset > MAX_RELATIVE_OFFSET:
            break
        accepted, end_offset = position + header.size_bytes, header.next_offset
        epoch = header.partition_leader_epoch
    disk, file = file_of(content)
    segment = Segment(disk, "/log", 0, LogConfig(index_interval_bytes=100))
    assert recover_segment(disk, segment, recovery_point, RecoveryReport(), may_be_torn=True) == end_offset
    assert file.read_at(0, 1 << 20) == content[:accepted]
    inode = disk.names[PATH]
    durable_from = next(
        (at for at, header, _ in one_by_one(content[:accepted]) if header.next_offset > recovery_point), None
    )
    if durable_from is not None:
        assert inode.synced[durable_from:] == content[durable_from:accepted]
    for position, header, _ in one_by_one(content[:accepted]):
        assert segment.position_of(header.base_offset) == position


def test_a_batch_whose_base_offset_is_damaged_is_removed():
    """The checksum of a batch does not include its base offset. No segment contains an offset that is so far
    behind its first offset."""
    first, second = (
        build_batch([Record(0, 1, None, b"v" * 200)], base_offset=n, leader_epoch=1) for n in (0, 1)
    )
    damaged = b"\x01" + second[1:]
    disk, file = file_of(first + damaged)
    segment = Segment(disk, "/log", 0, LogConfig(index_interval_bytes=100))
    assert recover_segment(disk, segment, 0, RecoveryReport(), may_be_torn=True) == 1
    assert file.read_at(0, 1 << 20) == first


def test_small_batches_are_written_in_large_pieces(monkeypatch):
    content = b"".join(
        build_batch([Record(0, 1, None, b"v")], base_offset=n, leader_epoch=1) for n in range(2_000)
    )
    disk, _ = file_of(content)
    writes = []
    write_at = MemoryFile.write_at
    monkeypatch.setattr(
        MemoryFile,
        "write_at",
        lambda file, position, buffers: (
            writes.append(position) or write_at(file, position, buffers)
            if file.path == PATH
            else write_at(file, position, buffers)
        ),
    )
    segment = Segment(disk, "/log", 0, LogConfig())
    assert recover_segment(disk, segment, 0, RecoveryReport(), may_be_torn=True) == 2_000
    assert len(writes) == 1
