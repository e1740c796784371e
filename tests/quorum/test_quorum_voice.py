"""The log lines and problems of a replica. A replica logs one line for each change of its state, and has a
list of its current problems."""

import logging
import uuid

import pytest

from moldau.quorum.core.messages import FetchRequest, VoteRequest
from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.voters import ReplicaKey, Voter, VoterSet, directory_text
from moldau.quorum.quorum_report import STRANGER_SILENCE_MS, STRANGERS_MAX, QuorumVoice
from moldau.quorum.settings import RaftSettings
from moldau.runtime import ErrorCode

ONE, TWO, OTHER = (uuid.UUID(int=number) for number in (1, 2, 3))
VOTERS = VoterSet(Voter(ReplicaKey(node_id), f"host-{node_id}", 9093) for node_id in (1, 2, 3))
NONE = ErrorCode.none
TWO_NAME = "node 2 (host-2:9093) of the metadata quorum"
VOTE = VoteRequest(candidate=ReplicaKey(1, ONE), epoch=1, log_end=OffsetAndEpoch(0, 0))


@pytest.fixture
def voice(caplog: pytest.LogCaptureFixture) -> QuorumVoice:
    caplog.set_level(logging.INFO)
    return QuorumVoice(ReplicaKey(1, ONE), VOTERS, RaftSettings(), "ours")


def fetch(node_id: int, directory_id: uuid.UUID) -> FetchRequest:
    key = ReplicaKey(node_id, directory_id)
    return FetchRequest(replica=key, epoch=1, log_end=OffsetAndEpoch(0, 0), max_wait_ms=0, max_bytes=0)


def test_an_unreachable_peer_and_its_return_are_each_logged_once(
    voice: QuorumVoice, caplog: pytest.LogCaptureFixture
) -> None:
    for now_ms in range(0, 60_000, 100):
        voice.failed(2, "connection refused", now_ms, now_ms + 1)
    assert caplog.messages == [
        "node 2 (host-2:9093) of the metadata quorum is unreachable: connection refused"
    ]
    assert voice.problems(60_000) == caplog.messages
    caplog.clear()
    for now_ms in range(5):
        voice.answered(2, NONE, VOTE, now_ms)
    assert caplog.messages == [f"{TWO_NAME} is reachable again"]
    assert voice.problems(60_000) == []


def test_a_connection_that_breaks_and_is_opened_again_is_not_logged(
    voice: QuorumVoice, caplog: pytest.LogCaptureFixture
) -> None:
    for now_ms in range(0, 60_000, 1_500):
        voice.failed(2, "connection reset", now_ms, now_ms + 1)
        voice.failed(2, "connection refused", now_ms + 500, now_ms + 501)
        voice.answered(2, NONE, VOTE, now_ms)
    assert not caplog.messages


def test_a_request_without_an_answer_in_time_is_enough(
    voice: QuorumVoice, caplog: pytest.LogCaptureFixture
) -> None:
    voice.failed(3, "no answer in 2500 ms", 0, 2_500)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ErrorCode.inconsistent_cluster_id, "belongs to another cluster than ours"),
        (ErrorCode.inconsistent_voter_set, "does not count this node 1 among its voters"),
    ],
)
def test_a_peer_that_refuses_this_node_is_logged_once(
    voice: QuorumVoice, caplog: pytest.LogCaptureFixture, error: ErrorCode, words: str
) -> None:
    for _ in range(100):
        voice.answered(2, error, VOTE, 0)
    assert len(caplog.messages) == 1
    assert words in caplog.messages[0]
    assert voice.problems(0) == caplog.messages
    if error is ErrorCode.inconsistent_voter_set:
        # An accepted fetch does not end the problem, because a leader accepts fetches of every node.
        voice.answered(2, NONE, fetch(1, ONE), 0)
        assert len(voice.problems(0)) == 1
    voice.answered(2, NONE, VOTE, 0)
    assert "accepts the requests of this node again" in caplog.messages[-1]
    assert voice.problems(0) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ErrorCode.inconsistent_cluster_id,
            "node 7 of cluster theirs sends requests to this node 1",
        ),
        (ErrorCode.inconsistent_voter_set, "controller.quorum.voters of this node 1 names [1, 2, 3]"),
    ],
)
def test_a_node_of_another_cluster_is_logged_once_until_it_stops_sending(
    voice: QuorumVoice, caplog: pytest.LogCaptureFixture, error: ErrorCode, words: str
) -> None:
    for now_ms in range(0, 10 * STRANGER_SILENCE_MS, 1_000):
        voice.refused(7, error, now_ms, cluster_id="theirs")
    assert len(caplog.messages) == 1
    assert words in caplog.messages[0]
    assert len(voice.problems(now_ms)) == 1
    later_ms = now_ms + STRANGER_SILENCE_MS + 1
    assert voice.problems(later_ms) == []
    voice.refused(7, error, later_ms, cluster_id="theirs")
    assert len(caplog.messages) == 2


def test_the_number_of_foreign_nodes_in_the_log_is_limited(
    voice: QuorumVoice, caplog: pytest.LogCaptureFixture
) -> None:
    voice.refused(2, ErrorCode.fenced_leader_epoch, 0)
    assert not caplog.messages
    for node_id in range(10 * STRANGERS_MAX):
        voice.refused(node_id, ErrorCode.inconsistent_voter_set, 0)
    assert len(caplog.messages) == STRANGERS_MAX
    for node_id in range(1_000, 1_000 + STRANGERS_MAX):
        voice.refused(node_id, ErrorCode.inconsistent_voter_set, STRANGER_SILENCE_MS + 1)
    assert len(voice.problems(STRANGER_SILENCE_MS + 1)) == STRANGERS_MAX


def test_requests_from_two_directories_in_turns_show_two_nodes_with_one_id(
    voice: QuorumVoice, caplog: pytest.LogCaptureFixture
) -> None:
    for now_ms in range(0, 5_000, 500):
        voice.asked(fetch(2, TWO), now_ms)
        voice.asked(fetch(2, OTHER), now_ms + 1)
    assert len(caplog.messages) == 1
    assert "node.id 2 is used by two nodes" in caplog.messages[0]
    # The ids have the form of meta.properties, so that they can be found there.
    assert directory_text(TWO) in caplog.messages[0]
    assert directory_text(OTHER) in caplog.messages[0]
    assert len(voice.problems(5_000)) == 1
    assert voice.problems(5_000 + STRANGER_SILENCE_MS) == []


def test_a_node_with_a_new_disk_does_not_count_as_a_second_node(
    voice: QuorumVoice, caplog: pytest.LogCaptureFixture
) -> None:
    voice.asked(fetch(2, TWO), 0)
    for now_ms in range(1, 100):
        voice.asked(fetch(2, OTHER), now_ms)
    assert not caplog.messages
    assert not voice.problems(100)


def test_another_directory_with_the_own_id_is_reported_immediately(
    voice: QuorumVoice, caplog: pytest.LogCaptureFixture
) -> None:
    for now_ms in range(100):
        voice.asked(
            VoteRequest(candidate=ReplicaKey(1, OTHER), epoch=1, log_end=OffsetAndEpoch(0, 0)), now_ms
        )
    assert len(caplog.messages) == 1
    assert "node.id 1 is used by two nodes" in caplog.messages[0]
    assert directory_text(ONE) in caplog.messages[0]


def test_elections_are_logged_at_level_info(voice: QuorumVoice, caplog: pytest.LogCaptureFixture) -> None:
    voice.started(0)
    voice.led(2, 1, 900)
    voice.led(2, 1, 950)
    voice.leader_lost(2, 5_000)
    voice.leader_lost(3, 5_500)
    voice.led(1, 3, 6_000)
    voice.tick(1_000_000)  # a leader does not wait for messages of another leader
    assert caplog.messages == [
        "node 2 leads the metadata quorum in epoch 1",
        "the metadata quorum has no leader in epoch 2 yet",
        "this node 1 leads the metadata quorum in epoch 3",
    ]
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_a_lost_majority_is_a_warning_and_so_is_its_return(
    voice: QuorumVoice, caplog: pytest.LogCaptureFixture
) -> None:
    voice.led(1, 4, 0)
    voice.majority_lost(4)
    voice.leader_lost(4, 0)
    voice.failed(2, "connection refused", 0, 3_000)
    for now_ms in range(0, 60_000, 100):
        voice.tick(now_ms)
    voice.answered(2, NONE, VOTE, 60_000)
    voice.led(2, 9, 60_000)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.split(":")[0][:60] for text in warnings] == [
        "this node 1 got no requests from a majority of the voters [1",
        "node 2 (host-2:9093) of the metadata quorum is unreachable"[:60].split(":")[0],
        "the metadata quorum has had no leader for 4 s; of its voters",
        "node 2 (host-2:9093) of the metadata quorum is reachable again"[:60].split(":")[0],
        "node 2 leads the metadata quorum in epoch 9",
    ]
    assert "this node does not reach [2, 3]" in warnings[2]
    assert "it has a leader again after 60.0 s" in warnings[4]
    assert voice.no_leader(60_000) is None


def test_a_leader_that_ended_is_reported_although_followers_still_name_it(
    voice: QuorumVoice, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a majority, no node ends the epoch (KIP-996). So the nodes still know the leader of
    this epoch."""
    voice.led(2, 4, 0)
    voice.answered(2, NONE, fetch(1, ONE), 10_000)
    voice.answered(3, NONE, VOTE, 60_000)  # only the leader responds to fetches
    for now_ms in range(10_000, 60_000, 100):
        voice.tick(now_ms)
        voice.led(2, 4, now_ms)  # after each lost pre-vote, the node follows the known leader again
    problem = "the leader 2 of the metadata quorum has not answered for 4 s"
    assert [text[: len(problem)] for text in caplog.messages[1:]] == [problem]
    assert (voice.no_leader(60_000) or "").startswith(problem.replace("4 s", "50 s"))
    voice.answered(2, NONE, fetch(1, ONE), 60_000)
    assert caplog.messages[2:] == [f"{TWO_NAME}, the leader, answers again after 50.0 s"]
    assert voice.no_leader(60_000) is None
    voice.tick(70_000)
    voice.leader_lost(5, 70_000)
    assert (voice.no_leader(70_000) or "").startswith("the metadata quorum has had no leader for 10 s")
    voice.led(3, 6, 71_000)
    assert caplog.messages[-1].endswith("it has a leader again after 11.0 s")


def test_bootstrap_servers_are_reported_while_no_voter_is_known(caplog: pytest.LogCaptureFixture) -> None:
    servers = {-2: "c1:9093", -3: "c2:9093"}
    voice = QuorumVoice(ReplicaKey(9, ONE), VoterSet([]), RaftSettings(), "ours", servers)
    voice.started(0)
    for now_ms in range(0, 10_000, 100):
        voice.failed(-2, "connection refused", now_ms, now_ms + 1)
        voice.answered(-3, ErrorCode.inconsistent_cluster_id, fetch(9, ONE), now_ms)
        voice.tick(now_ms)
    named = [f"{servers[node_id]} of controller.quorum.bootstrap.servers" for node_id in (-3, -2)]
    assert caplog.messages == [
        f"{named[0]} belongs to another cluster than ours",
        f"{named[1]} is unreachable: connection refused",
        "the metadata quorum has had no leader for 4 s; of controller.quorum.bootstrap.servers this node does"
        " not reach c1:9093, c2:9093",
    ]
    assert len(voice.problems(10_000)) == 2
    voice.voters_changed(VOTERS)
    assert voice.problems(10_000) == []
