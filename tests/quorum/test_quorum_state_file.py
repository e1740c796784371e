"""The ``quorum-state`` file, byte for byte."""

import uuid
from pathlib import Path

import pytest
from voter_ids import voters_of

from moldau.quorum.core.election_state import ElectionState
from moldau.quorum.core.voters import ReplicaKey
from moldau.quorum.state_store import (
    QuorumStateError,
    QuorumStateStore,
    decode_quorum_state,
    encode_quorum_state,
)
from moldau.runtime import LocalDisk

VOTERS = voters_of(1, 2, 3)
STATES = [
    ElectionState(),
    ElectionState(epoch=7, leader_id=2),
    ElectionState(epoch=7, voted=ReplicaKey(3)),
    ElectionState(epoch=9, leader_id=1, voted=ReplicaKey(1, uuid.UUID(int=77))),
]


def test_version_0_is_written_as_kafka_writes_it() -> None:
    assert encode_quorum_state(ElectionState(epoch=2, leader_id=1), voters=voters_of(1)) == (
        b'{"clusterId":"","leaderId":1,"leaderEpoch":2,"votedId":-1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1}],"data_version":0}'
    )


def test_version_1_is_written_as_kafka_writes_it() -> None:
    state = ElectionState(epoch=2, leader_id=1)
    assert encode_quorum_state(state, voters=VOTERS, version=1) == (
        b'{"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA",'
        b'"data_version":1}'
    )


@pytest.mark.parametrize("state", STATES)
def test_a_decoded_state_equals_the_encoded_state(state: ElectionState) -> None:
    content = encode_quorum_state(state, voters=VOTERS, version=1)
    assert decode_quorum_state(content, voters=VOTERS) == state


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'{"data_version":2}',
        b'{"data_version":0,"leaderId":null}',
        b"\xff",
        b"[" * 100_000,
    ],
    ids=["empty", "no fields", "list", "other version", "null", "no text", "deep"],
)
def test_a_file_that_cannot_be_read_is_an_error(content: bytes) -> None:
    with pytest.raises(QuorumStateError):
        decode_quorum_state(content, voters=VOTERS)


def test_other_voters_are_refused() -> None:
    content = encode_quorum_state(STATES[1], voters=VOTERS)
    with pytest.raises(QuorumStateError, match="voters"):
        decode_quorum_state(content, voters=voters_of(1, 2))


def test_the_store_begins_with_epoch_0_and_keeps_the_last_state(tmp_path: Path) -> None:
    store = QuorumStateStore(LocalDisk(), str(tmp_path), VOTERS)
    assert store.read() == ElectionState()
    store.write(STATES[1])
    assert store.read() == STATES[1]


@pytest.mark.parametrize("epoch", [2**31 - 1, 2**31, 2**70])
def test_an_epoch_without_a_successor_is_refused(epoch: int) -> None:
    """In an earlier version, the node ended later with an error of the encoder, and the error did not name
    the file."""
    content = b'{"leaderId":1,"leaderEpoch":%d,"votedId":1,"currentVoters":[],"data_version":0}' % epoch
    with pytest.raises(QuorumStateError, match="after which no election is possible"):
        decode_quorum_state(content, voters=None)
