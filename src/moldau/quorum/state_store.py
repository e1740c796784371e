"""Kafka's ``quorum-state`` file. It contains one line of JSON in version 0 (static voters) or 1 (KIP-853)."""

import base64
import json
import uuid
from typing import Final

from moldau.quorum.core.election_state import ElectionState
from moldau.quorum.core.voters import NO_DIRECTORY, ReplicaKey, VoterSet
from moldau.runtime import Disk

FILE_NAME = "quorum-state"
NO_ID = -1
EPOCH_MAX: Final = (1 << 31) - 1
"""The highest epoch that fits into requests. The election after this epoch would need a higher epoch."""
_ADVICE = (
    "Nothing was changed. It holds this node's vote: restore it from a backup, or see 'Damaged files' in"
    " docs/operations.md."
)


class QuorumStateError(ValueError):
    """The file is not valid. Either it cannot be read, or its voters differ from the configured voters."""


def encode_quorum_state(state: ElectionState, *, voters: VoterSet, version: int = 0) -> bytes:
    """Return the bytes that Kafka writes for this state: the same fields in the same order, without spaces or
    a newline."""
    leader_id = NO_ID if state.leader_id is None else state.leader_id
    voted_id = NO_ID if state.voted is None else state.voted.id
    fields: dict[str, object] = {"leaderId": leader_id, "leaderEpoch": state.epoch, "votedId": voted_id}
    if version == 0:
        voter_list = [{"voterId": voter_id} for voter_id in voters.ids]
        fields = {"clusterId": "", **fields, "appliedOffset": 0, "currentVoters": voter_list}
    else:
        directory_id = NO_DIRECTORY if state.voted is None else state.voted.directory_id
        fields["votedDirectoryId"] = encode_uuid(directory_id)
    fields["data_version"] = version
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_quorum_state(content: bytes, *, voters: VoterSet | None) -> ElectionState:
    """Decode the content of the file, in version 0 or 1. Raises :class:`QuorumStateError` for an invalid
    content, and when ``voters`` differ from the voters in the file.

    A changed static voter set is refused, as in Kafka. If some nodes used the old voter set and other nodes
    used the new one, they could elect two leaders. ``voters`` is ``None`` if the log contains the voters
    (KIP-853). The voters in the file are then out of date.
    """
    try:
        fields = json.loads(content)
        version = fields["data_version"]
        if version not in (0, 1):
            raise QuorumStateError(f"it has the unknown version {version}")
        epoch, leader_id = int(fields["leaderEpoch"]), int(fields["leaderId"])
        voted_id = int(fields["votedId"])
        known_voters = {int(voter["voterId"]) for voter in fields.get("currentVoters") or ()}
        directory_id = decode_uuid(fields["votedDirectoryId"]) if version == 1 else NO_DIRECTORY
    except QuorumStateError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise QuorumStateError(f"it is damaged and cannot be read: {error}") from error
    if epoch >= EPOCH_MAX:
        raise QuorumStateError(f"it has the epoch {epoch}, after which no election is possible")
    if voters is not None and known_voters and known_voters != set(voters.ids):
        raise QuorumStateError(
            f"it was written with the voters {sorted(known_voters)}, configured are {list(voters.ids)}"
        )
    return ElectionState(
        epoch=max(epoch, 0),
        leader_id=None if leader_id < 0 else leader_id,
        voted=None if voted_id < 0 else ReplicaKey(voted_id, directory_id),
    )


def encode_uuid(value: uuid.UUID) -> str:
    """Kafka's text form of an id: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_uuid(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


class QuorumStateStore:
    """The file in the metadata log's folder. Its methods block; call them through ``Workers``."""

    def __init__(self, disk: Disk, folder: str, voters: VoterSet) -> None:
        """``voters`` are the static voters."""
        self._disk = disk
        self._path = f"{folder}/{FILE_NAME}"
        self._voters = voters

    def read(self, *, is_static: bool = True) -> ElectionState:
        """The stored state. If there is no file, the state has epoch 0. Raises :class:`QuorumStateError` if
        the file is not valid."""
        try:
            content = self._disk.read(self._path)
        except FileNotFoundError:
            return ElectionState()
        try:
            return decode_quorum_state(content, voters=self._voters if is_static else None)
        except QuorumStateError as error:
            raise QuorumStateError(f"{self._path}: {error}. {_ADVICE}") from error

    def write(self, state: ElectionState, *, is_static: bool = True) -> None:
        """Write the state durably. Version 0 of the file contains the voters, and version 1 contains
        directory ids."""
        content = encode_quorum_state(state, voters=self._voters, version=0 if is_static else 1)
        self._disk.write_atomically(self._path, content)
