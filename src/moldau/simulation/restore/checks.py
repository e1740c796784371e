"""Checks of the guarantees about records after a restore:

* A record that was acknowledged before the cut exists once, at its offset.
* A record that was acknowledged after the cut exists. If its producer is idempotent, it exists only once.
* The records of an idempotent producer are in order.
* If an offset has another record than before the restore, the new record has a newer generation. So consumers
  detect the change (KIP-320).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import RetryError, SimulatedClient
from moldau.simulation.history import History, Outcome, Production

EPOCH_VERSION: Final = 4


@dataclass(slots=True)
class TimedHistory(History):
    """A history with the times of acknowledgements."""

    acknowledged_s: dict[int, float] = field(default_factory=dict)
    """Virtual time of each acknowledgement. The key identifies the produced batch."""

    def end(self, production: Production, outcome: Outcome, base_offset: int = -1, reason: str = "") -> None:
        History.end(self, production, outcome, base_offset, reason)
        if outcome is Outcome.OK:
            self.acknowledged_s[id(production)] = self.now_s()


class Read(NamedTuple):
    """The records of a partition as offsets and values, and the leader epoch of each offset."""

    records: list[tuple[int, bytes]]
    epochs: Mapping[int, int]


ReadContents = Mapping[TopicPartition, Read]


class RecordChecker:
    """Compares the records that were read after a restore with the records that were read before it."""

    def __init__(self, history: TimedHistory, idempotent: Iterable[str]) -> None:
        """``idempotent`` are the names of the idempotent producers."""
        self._history = history
        self._idempotent = {name.encode() for name in idempotent}
        self._served: dict[tuple[TopicPartition, int, int], bytes] = {}
        """Every record that was read, by partition, offset and leader epoch."""
        self._moved: dict[int, int] = {}
        """The offset of each production (a produced batch) that was acknowledged after a restored cut,
        because the restore may have moved the batch. The key is the ``id`` of the production."""

    def check(self, after: ReadContents, cut_s: float) -> None:
        """Check all records after a restore. The restored cut began at ``cut_s``."""
        for production in self._history.productions:
            if production.outcome is Outcome.OK:
                self._check_production(production, after[production.partition].records, cut_s)
        for partition, read in after.items():
            self._check_order(partition, [value for _, value in read.records])
        self.note_read(after)

    def note_read(self, contents: ReadContents) -> None:
        """Compare these records with the records that were read earlier. Two records with the same offset and
        epoch must be equal."""
        for partition, read in contents.items():
            for offset, value in read.records:
                key = (partition, offset, read.epochs[offset])
                known = self._served.setdefault(key, value)
                if known != value:
                    self._history.violate(f"{key} was {known!r}, and is {value!r} in the same epoch")

    async def check_epochs(
        self, client: SimulatedClient, partition: TopicPartition, before: Read, after: Mapping[int, bytes]
    ) -> None:
        """Check that a consumer that has read the records ``before`` can detect the offsets that have other
        records now."""
        ends = {epoch: await end_of_epoch(client, partition, epoch) for epoch in set(before.epochs.values())}
        for offset, value in before.records:
            if after.get(offset) != value and offset < ends[before.epochs[offset]]:
                self._history.violate(
                    f"{partition} has another record at {offset}, and its epoch {before.epochs[offset]} ends"
                    f" at {ends[before.epochs[offset]]}"
                )

    def _check_production(
        self, production: Production, records: list[tuple[int, bytes]], cut_s: float
    ) -> None:
        offsets = {
            value: [offset for offset, found in records if found == value] for value in production.values
        }
        first = production.values[0]
        acknowledged_s = self._history.acknowledged_s[id(production)]
        if any(not found for found in offsets.values()):
            self._history.violate(
                f"{first!r}, acknowledged at {acknowledged_s:.3f}, is lost; cut at {cut_s:.3f}"
            )
        elif production.idempotent and any(len(found) > 1 for found in offsets.values()):
            self._history.violate(f"{first!r} of an idempotent producer is there twice: {offsets[first]}")
        elif acknowledged_s >= cut_s:
            self._moved[id(production)] = offsets[first][0]
        else:
            offset = self._moved.get(id(production), production.base_offset)
            if offset >= 0 and offset not in offsets[first]:
                self._history.violate(f"{first!r} was at {offset} before the cut, and is at {offsets[first]}")

    def _check_order(self, partition: TopicPartition, values: Iterable[bytes]) -> None:
        last: dict[bytes, int] = {}
        for value in values:
            producer, _, rest = value.partition(b"/")
            number = int(rest.rstrip(b"."))
            if producer in self._idempotent and number < last.get(producer, -1):
                self._history.violate(f"{partition}: {value!r} came after number {last[producer]}")
            last[producer] = number


async def end_of_epoch(client: SimulatedClient, partition: TopicPartition, epoch: int) -> int:
    """The end offset of a leader epoch (KIP-320). The request is repeated until the leader has the epoch."""
    wanted = OffsetForLeaderTopic(
        topic=partition.topic,
        partitions=[OffsetForLeaderPartition(partition=partition.partition, leader_epoch=epoch)],
    )
    while True:
        try:
            connection = await client.leader(partition)
            request = OffsetForLeaderEpochRequest(topics=[wanted])
            response = await connection.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_VERSION, request)
            (found,) = response.topics[0].partitions
            if found.error_code is ErrorCode.none:
                return int(found.end_offset)
        except (OSError, RetryError):
            client.disconnect()
        await client.pause()
