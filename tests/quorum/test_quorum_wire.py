"""A message of the core is converted to Kafka's newest version and back. The message and its bytes do not
change."""

import uuid
from typing import Any

import pytest

from moldau.protocol.codec import decode_request, decode_response, encode_request, encode_response
from moldau.quorum.core import messages as msg
from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.voters import ReplicaKey, VoterSet
from moldau.quorum.wire.requests import RequestCodec
from moldau.quorum.wire.responses import from_response, to_response
from moldau.runtime import ErrorCode, KafkaError

WIRE = RequestCodec(cluster_id="c")
ME, YOU = ReplicaKey(1, uuid.UUID(int=5)), ReplicaKey(2, uuid.UUID(int=6))
POSITION = OffsetAndEpoch(10, 3)
VERSIONS = {1: 17, 52: 2, 53: 1, 54: 1, 59: 1}

REQUESTS: list[msg.Request] = [
    msg.VoteRequest(candidate=ME, epoch=4, log_end=POSITION, pre_vote=True, voter=YOU),
    msg.BeginQuorumEpochRequest(leader_id=1, epoch=4, voter=YOU),
    msg.EndQuorumEpochRequest(leader_id=1, epoch=4, preferred_successors=(3, 2)),
    msg.FetchRequest(replica=ME, epoch=4, log_end=POSITION, max_wait_ms=5, max_bytes=100),
    msg.FetchSnapshotRequest(replica=ME, epoch=4, snapshot_id=POSITION, position=7, max_bytes=100),
]
NO_LEADER: dict[str, Any] = {"error": ErrorCode.fenced_leader_epoch, "leader_id": None, "epoch": 4}
LED: dict[str, Any] = {"error": ErrorCode.none, "leader_id": 2, "epoch": 4}
RESPONSES: list[tuple[int, msg.Response]] = [
    (52, msg.VoteResponse(**LED, granted=True)),
    (52, msg.VoteResponse(**NO_LEADER)),
    (53, msg.BeginQuorumEpochResponse(**LED)),
    (54, msg.EndQuorumEpochResponse(**NO_LEADER)),
    (1, msg.FetchResponse(**LED, high_watermark=9, log_start_offset=2, records=(b"batch",))),
    (1, msg.FetchResponse(**LED, diverging=POSITION)),
    (1, msg.FetchResponse(**LED, snapshot_id=POSITION)),
    (1, msg.FetchResponse(**NO_LEADER)),
    (59, msg.FetchSnapshotResponse(**LED, snapshot_id=POSITION, size_bytes=9, position=3, data=b"part")),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda value: type(value).__name__)
def test_requests_are_unchanged_after_conversion_and_encoding(request_: msg.Request) -> None:
    message = WIRE.to_request(request_)
    assert WIRE.from_request(message) == request_
    key = message.API_KEY
    body = b"".join(encode_request(key, VERSIONS[key], message))
    decoded: Any = decode_request(key, VERSIONS[key], memoryview(body))
    assert WIRE.from_request(decoded) == request_


@pytest.mark.parametrize(("key", "response"), RESPONSES)
def test_responses_are_unchanged_after_conversion_and_encoding(key: int, response: msg.Response) -> None:
    message = to_response(WIRE, response)
    assert from_response(message) == response
    body = b"".join(encode_response(key, VERSIONS[key], message))
    decoded: Any = decode_response(key, VERSIONS[key], memoryview(body))
    assert from_response(decoded) == response


def test_another_cluster_is_refused() -> None:
    message = RequestCodec(cluster_id="other").to_request(REQUESTS[0])
    with pytest.raises(KafkaError) as refused:
        WIRE.from_request(message)
    assert refused.value.code is ErrorCode.inconsistent_cluster_id


def test_voters_are_read_from_the_configuration() -> None:
    voters = VoterSet.parse("2@b:9093, 1@[::1]:9092")
    assert [(voter.key.id, voter.host, voter.port) for voter in voters] == [(1, "::1", 9092), (2, "b", 9093)]
    for wrong in ("1", "1@b", "x@b:1", "1@b:1,1@c:2", "1@b:99999"):
        with pytest.raises(ValueError, match=r"expected|twice"):
            VoterSet.parse(wrong)
