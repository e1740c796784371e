"""Finds records by timestamp in single batches without blocking the event loop, for partitions of all kinds.

The producer sets the timestamps in a header. If they do not match the batch's records, the batch must be
opened (decompressed and parsed). There may be many such batches. Therefore the node's opening thread
(``Machine.opening``) opens a long batch, and the event loop runs between two batches.

A batch with unreadable records does not stop a search, because its header is used. For such a batch, a search
by time returns the batch's first offset, because a consumer that starts there misses no record. A search for
the largest timestamp then returns the batch's last offset.
"""

from moldau.records.batch import parse_header
from moldau.records.errors import InvalidRecordError
from moldau.records.record import opens_quickly
from moldau.records.timestamp_search import (
    RecordChoice,
    RecordPosition,
    choose_at_or_after,
    choose_exactly,
    choose_latest,
    search_batch,
)
from moldau.runtime.buffers import Buffer
from moldau.runtime.fair_lane import FairClient
from moldau.runtime.machine import Machine
from moldau.runtime.steps import exhaust


class RecordLookup:
    """Searches for records in batches of one partition, for one request."""

    def __init__(
        self,
        machine: Machine,
        client: FairClient | None,
        partition: str,
        deadline_s: float | None = None,
    ) -> None:
        self._machine = machine
        self._client = client
        self._partition = partition
        self.deadline_s = deadline_s
        """Time of the event loop's clock at which the request's search in the remote tier ends; ``None`` if
        the request has no time-out."""

    async def at_or_after(
        self, batch: Buffer, timestamp_ms: int, starting_offset: int
    ) -> RecordPosition | None:
        """Return the first record with at least this timestamp, at or after ``starting_offset``; ``None`` if
        there is no such record."""
        header = parse_header(batch)
        if header.max_timestamp < timestamp_ms or header.last_offset < starting_offset:
            return None
        stand_in = max(header.base_offset, starting_offset), header.max_timestamp
        return await self._search(batch, choose_at_or_after(timestamp_ms, starting_offset), stand_in)

    async def of_max_timestamp(self, batch: Buffer) -> RecordPosition | None:
        """Return the first record whose timestamp is the max timestamp in the batch header; ``None`` if no
        record has it."""
        header = parse_header(batch)
        stand_in = header.last_offset, header.max_timestamp
        return await self._search(batch, choose_exactly(header.max_timestamp), stand_in)

    async def latest(self, batch: Buffer, starting_offset: int) -> RecordPosition | None:
        """The first record with the largest timestamp. Records below ``starting_offset`` do not count."""
        header = parse_header(batch)
        stand_in = header.last_offset, header.max_timestamp
        return await self._search(batch, choose_latest(starting_offset), stand_in)

    async def _search(
        self, batch: Buffer, choose: RecordChoice, stand_in: RecordPosition
    ) -> RecordPosition | None:
        try:
            if opens_quickly(batch):
                return exhaust(search_batch(batch, choose))
            return await self._machine.opening.put(self._client, search_batch(bytes(batch), choose))
        except InvalidRecordError as error:
            self._machine.unreadable.report(self._partition, parse_header(batch).base_offset, error)
            return stand_in
