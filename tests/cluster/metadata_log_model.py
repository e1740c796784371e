"""A metadata log in memory that commits when a test calls it."""

import asyncio
from collections.abc import Sequence

from moldau.cluster.metadata_log import MetadataBatch, MetadataLogListener, SnapshotTarget
from moldau.runtime import ErrorCode, KafkaError


class MemorySnapshotTarget:
    def __init__(self, log: "MemoryMetadataLog", end_offset: int) -> None:
        self._log = log
        self._end_offset = end_offset
        self.values: list[bytes] = []
        self.unsettled: list[int] = []
        """Lengths of the batches since the last call of ``settle``."""

    def append(self, values: Sequence[bytes]) -> None:
        self.values += values
        self.unsettled.append(len(values))

    async def settle(self) -> None:
        self.unsettled.clear()

    async def freeze(self) -> None:
        self._log.snapshots[self._end_offset] = self.values
        self._log.frozen.set()

    def abandon(self) -> None:
        self._log.abandoned += 1


class MemoryMetadataLog:
    """With ``auto``, each append is committed in the next iteration of the event loop."""

    def __init__(self, *, auto: bool = True) -> None:
        self.auto = auto
        self.epoch = 0
        self.leader_id = -1
        self.end_offset = 0
        self.pending: list[tuple[MetadataBatch, asyncio.Future[int]]] = []
        self.committed: list[MetadataBatch] = []
        self.snapshots: dict[int, list[bytes]] = {}
        self.frozen = asyncio.Event()
        self.abandoned = 0
        self.refuse_next = False
        self._listeners: list[MetadataLogListener] = []

    def add_listener(self, listener: MetadataLogListener) -> None:
        self._listeners.append(listener)
        if self.committed:
            for _ in listener.on_commit(list(self.committed)) or ():
                pass

    def next_offset(self) -> int:
        return self.end_offset

    def append(self, epoch: int, values: Sequence[bytes]) -> "asyncio.Future[int]":
        if self.refuse_next:
            self.refuse_next = False
            raise KafkaError(ErrorCode.record_list_too_large, "Too many bytes.")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        self.pending.append((MetadataBatch(self.end_offset, epoch, 1, list(values)), future))
        self.end_offset += len(values)
        if self.auto:
            loop.call_soon(self.commit)
        return future

    def commit(self) -> None:
        """Commit everything that was appended."""
        pending, self.pending = self.pending, []
        for batch, future in pending:
            self.committed.append(batch)
            for listener in self._listeners:
                for _ in listener.on_commit([batch]) or ():
                    pass
            future.set_result(batch.last_offset)

    def elect(self, leader_id: int) -> None:
        """Begin a new epoch. Uncommitted records of the old leader are lost."""
        pending, self.pending = self.pending, []
        self.end_offset = self.committed[-1].last_offset + 1 if self.committed else 0
        self.epoch += 1
        self.leader_id = leader_id
        for listener in self._listeners:
            listener.on_leader(leader_id, self.epoch)
        for _, future in pending:
            future.set_exception(KafkaError(ErrorCode.not_controller, "Another node leads."))

    def resign(self, epoch: int) -> None:
        if epoch == self.epoch:
            self.elect(-1)

    def create_snapshot(self, end_offset: int, epoch: int, timestamp_ms: int) -> SnapshotTarget | None:
        return None if end_offset in self.snapshots else MemorySnapshotTarget(self, end_offset)
