"""Appends, crashes and truncations of the partition log. The log is compared with a list of batches."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import iter_headers, validate_produce
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=200, retention_ms=-1)


class LogMachine(RuleBasedStateMachine):
    box_type: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.box = self.box_type()
        self.batches: list[tuple[int, int, bytes]] = []
        self.start = 0
        self.durable_end = 0
        self.epoch = 0
        self.end = 0
        self.open(clean=False, recovery_point=0)

    def open(self, *, clean: bool, recovery_point: int, start: int = 0) -> None:
        self.log = PartitionLog.open(
            self.box.machine,
            "/data/t-0",
            TopicPartition("t", 0),
            CONFIG,
            clean_shutdown=clean,
            recovery_point=recovery_point,
            log_start_offset=start,
        )

    def reopen(self, **how: Any) -> None:
        """Open the log again, without a loss of bytes. The log may end earlier than before if its last
        offsets were a gap without records."""
        self.open(start=self.start, **how)
        last = self.batches[-1][1] + 1 if self.batches else self.start
        assert min(last, self.end) <= self.log.log_end_offset <= self.end
        self.end = self.log.log_end_offset
        # A log does not begin after its first leader epoch. After a kill, the file with the epochs may be
        # older than the last deletion of records.
        assert self.log.log_start_offset <= self.start
        self.start = self.log.log_start_offset
        self.durable_end = min(self.durable_end, self.end)

    @rule(count=st.integers(1, 6), size=st.integers(0, 120), later=st.integers(-50, 50))
    def append(self, count: int, size: int, later: int) -> None:
        self.box.clock.time_ms += 7
        now = self.box.clock.time_ms + later
        batch = build_batch([Record(0, now + i, None, b"v" * size, ()) for i in range(count)])
        info = self.log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), self.epoch)
        assert (info.first_offset, info.last_offset) == (self.end, self.end + count - 1)
        self.batches.append((info.first_offset, info.last_offset, batch))
        self.end = info.last_offset + 1

    @rule(count=st.integers(1, 3), gap=st.integers(0, 3))
    def append_given(self, count: int, gap: int) -> None:
        now = self.box.clock.time_ms
        base = self.end + gap
        batch = build_batch(
            [Record(0, now, b"k", b"v", ()) for _ in range(count)], base_offset=base, leader_epoch=self.epoch
        )
        self.log.append_as_follower(batch + b"\0\0\0torn")
        self.batches.append((base, base + count - 1, batch))
        self.end = base + count

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        assert asyncio.run(self.log.flush()) == self.log.log_end_offset
        self.durable_end = self.log.log_end_offset

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.batches) - 1))
        offset = self.batches[index][0]
        if offset < self.start:
            return
        asyncio.run(self.log.truncate_to(offset))
        del self.batches[index:]
        self.end = self.log.log_end_offset
        assert self.end == max(self.start, self.batches[-1][1] + 1 if self.batches else 0)
        self.durable_end = min(self.durable_end, self.end)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        self.log.update_log_start_offset(offset)
        self.start = max(self.start, offset)
        self.log.high_watermark = self.log.log_end_offset
        for path in asyncio.run(self.log.delete_old_segments(self.box.clock.time_ms)):
            self.box.disk.remove(path)

    @rule(clean=st.booleans())
    def stop(self, clean: bool) -> None:
        self.log.close()
        self.durable_end = self.end
        start = self.start
        self.reopen(clean=clean, recovery_point=self.log.flushed_offset)
        assert self.start == start

    @rule()
    def kill(self) -> None:
        self.reopen(clean=False, recovery_point=self.durable_end)

    @rule(seed=st.integers(0, 2**32))
    def lose_power(self, seed: int) -> None:
        self.box.disk.crash(random.Random(seed))
        self.open(clean=False, recovery_point=self.durable_end, start=min(self.start, self.durable_end))
        end = self.log.log_end_offset
        assert all(last < end for _, last, _ in self.batches if last < self.durable_end)
        self.batches = [batch for batch in self.batches if batch[1] < end]
        self.start = self.log.log_start_offset
        self.end = end
        self.durable_end = min(self.durable_end, end)

    @invariant()
    def reads_back(self) -> None:
        assert self.log.log_end_offset == self.end
        read: list[tuple[int, int]] = []
        offset = self.log.log_start_offset
        while offset < self.log.log_end_offset:
            result = self.log.read(offset, 400)
            content = b"".join(result.views)
            if not content:  # a gap between offsets at the end
                break
            for position, header in iter_headers(content):
                read.append((header.base_offset, header.last_offset))
                whole = content[position + 16 : position + header.size_bytes]
                assert whole in {batch[16:] for _, _, batch in self.batches}
            assert result.next_offset > offset
            offset = result.next_offset
        assert read == [(first, last) for first, last, _ in self.batches if last >= self.log.log_start_offset]

    @invariant()
    def sizes_add_up(self) -> None:
        assert self.log.size_bytes == sum(s.size_bytes for s in self.log.segments.segments)

    @invariant()
    def epochs_fit(self) -> None:
        entries = self.log.leader_epochs.entries
        assert all(entry.start_offset <= self.log.log_end_offset for entry in entries)


def test_a_log_is_a_list_of_batches(new_box: Any) -> None:
    LogMachine.box_type = new_box
    run_state_machine_as_test(
        LogMachine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )


@pytest.mark.parametrize("tail", [b"", bytes(100), bytes(5000)])
def test_a_torn_tail_is_cut_at_every_byte(box: Any, tail: bytes) -> None:
    log = PartitionLog.open(box.machine, "/data/t-0", TopicPartition("t", 0), CONFIG)
    batch = build_batch([Record(0, box.clock.time_ms, None, b"value", (("h", b"not zero"),))])
    headers = validate_produce(batch, max_batch_bytes=10**6)
    for _ in range(3):
        log.append_as_leader(batch, headers, 0)
    whole = bytes(box.disk.names["/data/t-0/00000000000000000000.log"].data)
    for kept in range(len(batch)):
        box.disk.names["/data/t-0/00000000000000000000.log"].data[:] = whole[: 2 * len(batch) + kept] + tail
        again = PartitionLog.open(box.machine, "/data/t-0", TopicPartition("t", 0), CONFIG)
        assert again.log_end_offset == 2
        assert box.disk.size("/data/t-0/00000000000000000000.log") == 2 * len(batch)
        assert again.append_as_leader(batch, headers, 0).first_offset == 2
