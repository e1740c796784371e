"""The states at borders that leaders have handed over to this broker, each in a durable file.

A state is used when the image shows the border, by which this broker's replica then begins. States of borders
that never came are removed when a later state arrives.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from crc32c import crc32c

from moldau.chunks.calls import HAND_OVER_CHUNK, HandedOver, handed_over
from moldau.protocol.errors import ProtocolError
from moldau.protocol.own.chunks.hand_over_chunk import HandOverChunkRequest
from moldau.protocol.records.schema import decode_versioned, encode_versioned
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.storage.folders.file_names import HAND_OVERS
from moldau.storage.folders.log_directory import LogDirectory
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.leader_epochs import EpochEntry
from moldau.storage.producers.producer_snapshot import CorruptSnapshotError, decode_producer_snapshot

logger = logging.getLogger(__name__)

_CRC_BYTES: Final = 4
_Key = tuple[UUID, int]


class HandOvers:
    """The handed-over states of a broker, at most one for each partition. It is used on the event loop."""

    def __init__(self, machine: Machine, directory: LogDirectory) -> None:
        self._machine = machine
        self._directory = directory
        self._folder = f"{directory.path}/{HAND_OVERS}"
        self._states: dict[_Key, HandedOver] = {}
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """Read all states, at the start. Files that cannot be read are left out."""
        if self._directory.is_online:
            for state in await self._machine.workers.run(self._read_all):
                self._states[state.topic_id, state.partition_index] = state

    def _read_all(self) -> list[HandedOver]:
        disk, found = self._machine.disk, []
        if not disk.is_dir(self._folder):
            return []
        for name in disk.list(self._folder):
            content = disk.read(f"{self._folder}/{name}")
            body = content[_CRC_BYTES:]
            try:
                if int.from_bytes(content[:_CRC_BYTES], "big") != crc32c(body):
                    raise ProtocolError("the checksum is another")
                found.append(handed_over(decode_versioned(HandOverChunkRequest, body)))
            except ProtocolError as error:
                logger.warning("%s/%s is not used: %s", self._folder, name, error)
        return found

    async def keep(self, state: HandedOver) -> None:
        """Keep a state durably. Raises ``KafkaError``."""
        key = (state.topic_id, state.partition_index)
        known = self._states.get(key)
        if known is not None and known.leader_epoch > state.leader_epoch:
            raise KafkaError(
                ErrorCode.fenced_leader_epoch, f"epoch {known.leader_epoch} has handed over here"
            )
        try:
            decode_producer_snapshot(state.producer_snapshot)
        except CorruptSnapshotError as error:
            raise KafkaError(ErrorCode.invalid_request, str(error)) from error
        body = encode_versioned(HAND_OVER_CHUNK.ask(state, 0, 0))
        async with self._writing:
            try:
                await self._machine.workers.run(self._write, _file_of(key), body)
            except OSError as error:
                raise KafkaError(ErrorCode.kafka_storage_error, f"{self._folder}: {error}") from error
        self._states[key] = state

    def _write(self, name: str, body: bytes) -> None:
        disk = self._machine.disk
        if not disk.is_dir(self._folder):
            disk.make_dirs(self._folder)
            disk.sync_dir(self._directory.path)
        disk.write_atomically(f"{self._folder}/{name}", crc32c(body).to_bytes(_CRC_BYTES, "big") + body)

    def at(self, topic_id: UUID, partition: int, start_offset: int) -> AuxiliaryState | None:
        """The state of a partition at a border."""
        state = self._states.get((topic_id, partition))
        if state is None or state.start_offset != start_offset:
            return None
        try:
            producers = decode_producer_snapshot(state.producer_snapshot)
        except CorruptSnapshotError:
            return None
        epochs = [EpochEntry(epoch, start) for epoch, start in state.leader_epochs]
        return AuxiliaryState(start_offset, state.log_start_offset, epochs, producers)

    async def forget(self, topic_id: UUID, partition: int) -> None:
        """Remove a partition's state, which has been used or will never be. Raises ``OSError``."""
        key = (topic_id, partition)
        if self._states.pop(key, None) is None or not self._directory.is_online:
            return
        async with self._writing:
            if key not in self._states:
                await self._machine.workers.run(self._remove, f"{self._folder}/{_file_of(key)}")

    def _remove(self, path: str) -> None:
        if self._machine.disk.exists(path):
            self._machine.disk.remove(path)

    def __iter__(self) -> Iterator[tuple[UUID, int]]:
        return iter(tuple(self._states))


def _file_of(key: _Key) -> str:
    return f"{key[0].hex}-{key[1]}"
