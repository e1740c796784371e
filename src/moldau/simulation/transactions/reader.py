"""A consumer with ``read_committed``. It leaves out aborted records as Kafka's clients do."""

import random
from typing import Any, Final, NamedTuple

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.records.batch import iter_headers
from moldau.records.control import EndTransactionMarker, parse_control_record
from moldau.records.record import iter_records
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import Bootstrap, RetryError, SimulatedClient
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.history import History

FETCH_VERSION: Final = 12
_READ_COMMITTED: Final = 1


class CommittedRead(NamedTuple):
    """A record that a consumer with ``read_committed`` returned, and the time when it was returned."""

    offset: int
    value: str
    at_s: float


class CommittedReader(SimulatedClient):
    """Reads a partition, beginning at its start."""

    rack = ""
    """The rack in each Fetch. A consumer with a rack may be sent to another broker (KIP-392)."""

    def __init__(
        self,
        name: str,
        bootstrap: Bootstrap,
        history: History,
        chance: random.Random,
        topic: str,
        partition: int,
    ) -> None:
        super().__init__(name, bootstrap, history, chance)
        self._topic = topic
        self.partition = partition
        self.reads: list[CommittedRead] = []
        self._offset = 0
        self._aborting: set[int] = set()
        self.is_at_end = False
        """Whether the last answer was empty and its last stable offset was equal to the high watermark."""

    @property
    def offset(self) -> int:
        """The offset of the next fetch."""
        return self._offset

    @property
    def values(self) -> list[str]:
        """The values that were read, in order."""
        return [each.value for each in self.reads]

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.poll()

    async def poll(self) -> None:
        """Fetch once. If the connection is lost, a new connection is opened. The next call repeats a failed
        fetch."""
        try:
            await self._fetch()
        except (OSError, RetryError):
            self.disconnect()
            await self.pause()

    async def _fetch(self) -> None:
        connection = await self._opened()
        wanted = FetchPartition(
            partition=self.partition,
            fetch_offset=self._offset,
            partition_max_bytes=self.chance.choice((1, 4096)),
        )
        request = FetchRequest(
            max_wait_ms=200,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=_READ_COMMITTED,
            topics=[FetchTopic(topic=self._topic, partitions=[wanted])],
            rack_id=self.rack,
        )
        answer = await connection.request(ApiKey.FETCH, FETCH_VERSION, request)
        row = answer.responses[0].partitions[0]
        if row.error_code is not ErrorCode.none:
            raise RetryError(row.error_code.name)
        if row.preferred_read_replica >= 0:
            await self._follow(row.preferred_read_replica)
            return
        before = self._offset
        self._note_batches(row)
        self.is_at_end = self._offset == before and row.last_stable_offset == row.high_watermark == before

    async def _follow(self, broker_id: int) -> None:
        """Fetch from another broker from now on."""
        self.history.violate(f"{self.name} is sent to broker {broker_id}, but it has no rack")

    async def _opened(self) -> RpcConnection:
        """The connection for fetches. Raises OSError and RetryError."""
        if self._connection is None or self._connection.closed:
            self._connection = await RpcConnection.open(self.name, self.bootstrap.host, self.bootstrap.port)
        return self._connection

    def _note_batches(self, row: Any) -> None:
        content = memoryview(_joined(row.records))
        aborted = sorted((each.first_offset, each.producer_id) for each in row.aborted_transactions or ())
        for position, header in iter_headers(content):
            if header.last_offset < self._offset:
                continue
            while aborted and aborted[0][0] <= header.last_offset:
                self._aborting.add(aborted.pop(0)[1])
            batch = content[position : position + header.size_bytes]
            if header.is_control:
                for record in iter_records(batch):
                    marker = parse_control_record(record)
                    if isinstance(marker, EndTransactionMarker) and not marker.committed:
                        self._aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in self._aborting):
                self._note_records(batch)
            self._offset = header.last_offset + 1

    def _note_records(self, batch: memoryview) -> None:
        now_s = self.history.now_s()
        for record in iter_records(batch):
            if record.offset >= self._offset:
                self.reads.append(CommittedRead(record.offset, (record.value or b"").decode(), now_s))


def _joined(records: Any) -> bytes:
    return b"".join(records) if isinstance(records, list | tuple) else bytes(records or b"")
