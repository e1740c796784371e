"""The states at the borders of chunks that leaders have sent to this broker. Each state is in a durable file.

A border is the first offset of a new chunk. The state has the producers and the leader epochs at the border.
This broker uses a state when the image contains the border at which its replica begins. A state of a later
border does not replace an earlier state, because the creation of the later chunk may still fail.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from crc32c import crc32c

from moldau.chunks.calls import HAND_OVER_CHUNK, HandedOver, handed_over
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.own.chunks.hand_over_chunk import HandOverChunkRequest
from moldau.protocol.records.schema import decode_versioned, encode_versioned
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.storage.folders.file_names import HAND_OVERS
from moldau.storage.folders.log_directory import LogDirectory
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.leader_epochs import EpochEntry
from moldau.storage.producers.producer_snapshot import (
    CorruptSnapshotError,
    decode_producer_snapshot,
)

logger = logging.getLogger(__name__)

_CRC_BYTES: Final = 4
STATES_MAX: Final = 4
"""Maximum number of states that are kept for a partition. Only the latest states are kept, one for each
leader epoch. Any other state is not needed, because no chunk was created at its border, or because the
replica has already begun at that border."""
_HandOverKey = tuple[UUID, int, int]
"""The topic id, the partition and the border."""


def encode_state(state: HandedOver) -> bytes:
    """Encode a state at a border. Files contain this form, and other replicas of the chunk fetch this
    form.
    """
    body = encode_versioned(HAND_OVER_CHUNK.ask(state, 0, 0))
    return crc32c(body).to_bytes(_CRC_BYTES, "big") + body


def decode_state(content: bytes) -> HandedOver:
    """Decode the result of :func:`encode_state`. Raises ``ProtocolError``."""
    body = content[_CRC_BYTES:]
    if int.from_bytes(content[:_CRC_BYTES], "big") != crc32c(body):
        raise ProtocolError("the checksum is another")
    return handed_over(decode_versioned(HandOverChunkRequest, body))


def auxiliary_state(state: HandedOver) -> AuxiliaryState:
    """The state with which a log begins at the border. Raises :class:`CorruptSnapshotError`."""
    producers = decode_producer_snapshot(state.producer_snapshot)
    epochs = [EpochEntry(epoch, start) for epoch, start in state.leader_epochs]
    return AuxiliaryState(state.start_offset, state.log_start_offset, epochs, producers)


class HandOvers:
    """The states that other brokers have handed over to this broker. Use this class on the event loop."""

    def __init__(self, machine: Machine, directory: LogDirectory) -> None:
        self._machine = machine
        self._directory = directory
        self._folder = f"{directory.path}/{HAND_OVERS}"
        self._states: dict[_HandOverKey, HandedOver] = {}
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """Read all states when the broker starts. Files that cannot be read are skipped."""
        if self._directory.is_online:
            for state in await self._machine.workers.run(self._read_all):
                self._states[_key_of(state)] = state

    def _read_all(self) -> list[HandedOver]:
        disk, found = self._machine.disk, []
        if not disk.is_dir(self._folder):
            return []
        for name in disk.list(self._folder):
            try:
                found.append(decode_state(disk.read(f"{self._folder}/{name}")))
            except ProtocolError as error:
                logger.warning("%s/%s is not used: %s", self._folder, name, error)
        return found

    async def keep(self, state: HandedOver) -> None:
        """Store a state durably. Raises ``KafkaError``."""
        key = _key_of(state)
        latest = max((each.leader_epoch for each in self._of(*key[:2])), default=-1)
        if latest > state.leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch, f"epoch {latest} has handed over here")
        try:
            decode_producer_snapshot(state.producer_snapshot)
        except CorruptSnapshotError as error:
            raise KafkaError(ErrorCode.invalid_request, str(error)) from error
        content = encode_state(state)
        async with self._writing:
            try:
                await self._machine.workers.run(self._write, _file_of(key), content)
                self._states[key] = state
                for old in map(_key_of, self._superseded(state)):
                    del self._states[old]
                    await self._machine.workers.run(self._remove, f"{self._folder}/{_file_of(old)}")
            except OSError as error:
                raise KafkaError(ErrorCode.kafka_storage_error, f"{self._folder}: {error}") from error

    def _of(self, topic_id: UUID, partition: int) -> list[HandedOver]:
        return [state for key, state in self._states.items() if key[:2] == (topic_id, partition)]

    def _superseded(self, new: HandedOver) -> list[HandedOver]:
        """Return the states that are not needed any more after the new state was stored. All other states
        with the new state's leader epoch or a later leader epoch are among them. This is safe, because a
        leader sends the state of a chunk again if the creation of the chunk has failed.
        """
        others = [each for each in self._of(new.topic_id, new.partition_index) if each is not new]
        others.sort(key=lambda each: each.leader_epoch, reverse=True)
        earlier = [each for each in others if each.leader_epoch < new.leader_epoch]
        return [each for each in others if each not in earlier[: STATES_MAX - 1]]

    def _write(self, name: str, content: bytes) -> None:
        disk = self._machine.disk
        if not disk.is_dir(self._folder):
            disk.make_dirs(self._folder)
            disk.sync_dir(self._directory.path)
        disk.write_atomically(f"{self._folder}/{name}", content)

    def at(self, topic_id: UUID, partition: int, start_offset: int) -> AuxiliaryState | None:
        """The state of a partition at a border."""
        state = self._states.get((topic_id, partition, start_offset))
        if state is None:
            return None
        try:
            return auxiliary_state(state)
        except CorruptSnapshotError:
            return None

    def encoded(self, topic_id: UUID, partition: int, start_offset: int) -> bytes | None:
        """The state of a partition at a border, for another replica of the chunk."""
        state = self._states.get((topic_id, partition, start_offset))
        return None if state is None else encode_state(state)

    async def forget(self, topic_id: UUID, partition: int) -> None:
        """Remove a partition's states, which were used or are not needed any more. Raises ``OSError``."""
        for key in map(_key_of, self._of(topic_id, partition)):
            del self._states[key]
            async with self._writing:
                if self._directory.is_online and key not in self._states:
                    await self._machine.workers.run(self._remove, f"{self._folder}/{_file_of(key)}")

    def _remove(self, path: str) -> None:
        if self._machine.disk.exists(path):
            self._machine.disk.remove(path)

    def __iter__(self) -> Iterator[tuple[UUID, int]]:
        return iter({key[:2] for key in self._states})


def _key_of(state: HandedOver) -> _HandOverKey:
    return state.topic_id, state.partition_index, state.start_offset


def _file_of(key: _HandOverKey) -> str:
    return f"{key[0].hex}-{key[1]}-{key[2]}"
