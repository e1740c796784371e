"""Three nodes with replicated partitions, in virtual time. No fault causes the loss of an acknowledged
record."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from moldau.cluster.broker_lifecycle import BrokerLifecycle
from moldau.cluster.controller.service import ControllerService
from moldau.cluster.decisions import brokers
from moldau.cluster.decisions.partitions import alter_partition as partitions
from moldau.cluster.decisions.partitions import partition_change, topic_rules
from moldau.cluster.image.partition import PartitionRegistration
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.schema import Message
from moldau.replication import reads
from moldau.replication.core.leader import LeaderReplica
from moldau.replication.fetching.replica_fetcher_manager import ReplicaFetcherManager
from moldau.server.subsystems.broker_registration import RegistrationSubsystem
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

SEEDS = 2


STORIES = (
    "replication",
    "replication-power",
    "replication-lag",
    "replication-moves",
    "replication-copies",
    "replication-unsynced",
    "replication-rolling",
    "replication-directories",
    "replication-directory-moves",
)


@pytest.mark.parametrize("name", STORIES)
def test_acknowledged_records_survive(name: str) -> None:
    scenario = SCENARIOS[name]()
    failed = {seed: found for seed in range(SEEDS) if (found := run_seed(scenario, seed).violations)}
    assert not failed, f"repeat with: python -m moldau.simulation --node {name} --seed {min(failed)}"


def test_batches_of_producers_are_known_after_restarts() -> None:
    """In this history all brokers restart while a producer has batches without responses. The producer sends
    all these batches again."""
    assert run_seed(SCENARIOS["replication-unsynced"](), 6).violations == []


def test_a_broker_may_leave_while_the_disk_of_the_controller_is_slow() -> None:
    """In this history the active controller syncs its log for 1.6 s while a broker stops, and cannot respond.
    The broker waits for half of the session time-out, and stops without the agreement."""
    assert run_seed(SCENARIOS["replication-rolling"](), 2100120).violations == []


def test_a_cluster_repeats_its_history() -> None:
    scenario = replace(SCENARIOS["replication"](), fault_count=2, records_per_producer=60)
    assert run_seed(scenario, 3).digest == run_seed(scenario, 3).digest


def watermark_one_too_far(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a follower's fetch from an offset also acknowledges the record at that offset."""
    fetched: Callable[..., bool] = LeaderReplica.follower_fetched

    def generous(self: LeaderReplica, replica_id: int, fetch_offset: int, now_ms: int, **more: Any) -> bool:
        return fetched(self, replica_id, min(fetch_offset + 1, self.log_end_offset), now_ms, **more)

    patch.setattr(LeaderReplica, "follower_fetched", generous)


def truncation_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a leader does not compare the log of a follower with its own log."""
    patch.setattr(reads, "diverging_epoch", lambda *_: None)


def epoch_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the controller accepts the in-sync set of a leader with an old epoch."""
    patch.setattr(partitions, "_check_proposal", lambda *_: None)


def joined_before_caught_up(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a follower is in sync as soon as its broker is active."""
    patch.setattr(LeaderReplica, "_is_long_enough", lambda self, progress: True)
    patch.setattr(partitions, "_is_eligible", lambda *_: True)


def move_ended_early(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a move of replicas ends before the new replicas are in sync."""

    def ended(target: PartitionRegistration) -> PartitionRegistration:
        replicas = tuple(each for each in target.replicas if each not in target.removing_replicas)
        isr = tuple(each for each in target.isr if each in replicas) or replicas[:1]
        return replace(target, replicas=replicas, isr=isr, removing_replicas=(), adding_replicas=())

    patch.setattr(partition_change, "_with_ended_move", ended)


def eligible_leaders_not_kept(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the last in-sync replica stays in the in-sync set although it lost its last writes."""
    patch.setattr(topic_rules, "keeps_eligible", lambda view: False)
    patch.setattr(brokers, "keeps_eligible", lambda view: False)


def leaderships_kept(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a broker that stops does not notify the controller."""

    async def leave(self: BrokerLifecycle, *_: Any) -> bool:
        await self.stop()
        return True

    patch.setattr(BrokerLifecycle, "controlled_shutdown", leave)


def left_too_early(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a broker that stops waits only a short time for the controller's response."""
    wait: Callable[..., Any] = BrokerLifecycle.controlled_shutdown

    async def impatient(self: BrokerLifecycle, timeout_ms: int, silence_ms: int) -> bool:
        agreed: bool = await wait(self, timeout_ms, silence_ms // 100)
        return agreed

    patch.setattr(BrokerLifecycle, "controlled_shutdown", impatient)


def stops_unanswered(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the controller does not respond to the heartbeat of a broker that stops, although it
    could."""
    handle: Callable[..., Any] = ControllerService.handle

    async def mute(self: ControllerService, request: Message, *more: Any, **named: Any) -> Message:
        if isinstance(request, BrokerHeartbeatRequest) and request.want_shut_down:
            await asyncio.get_running_loop().create_future()
        response: Message = await handle(self, request, *more, **named)
        return response

    patch.setattr(ControllerService, "handle", mute)


def watermark_goes_back(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a new leader drops the watermark that it had as a follower."""
    init: Callable[..., None] = LeaderReplica.__init__

    def forgetful(self: LeaderReplica, *arguments: Any, **more: Any) -> None:
        init(self, *arguments, **more)
        self.high_watermark = 0

    patch.setattr(LeaderReplica, "__init__", forgetful)


def failed_directory_untold(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a broker whose disk has failed does not report this to the controller."""
    patch.setattr(RegistrationSubsystem, "_failed_directories", lambda self: ())


def copies_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: nobody follows a partition that has left its connection to be copied."""
    begin: Callable[..., None] = ReplicaFetcherManager._begin_copy

    def forgetful(self: ReplicaFetcherManager, key: PartitionKey) -> None:
        begin(self, key)
        self.leave(key)

    patch.setattr(ReplicaFetcherManager, "_begin_copy", forgetful)


LOST = "is lost|went back|out of range|not equal"
"""A part of each violation that shows that records were lost."""
FLAWS = [
    (watermark_goes_back, "replication", 0, "went back"),
    (watermark_one_too_far, "replication", 1, LOST),
    (truncation_forgotten, "replication", 5, "not equal|do not come together"),
    (epoch_not_fenced, "replication", 11, LOST),
    (joined_before_caught_up, "replication-lag", 1, LOST),
    (move_ended_early, "replication-moves", 23, LOST),
    (eligible_leaders_not_kept, "replication-unsynced", 3, LOST),
    (leaderships_kept, "replication-rolling", 0, "still leads"),
    (left_too_early, "replication-rolling", 0, "still leads"),
    (stops_unanswered, "replication-rolling", 4, "still leads"),
    (failed_directory_untold, "replication-directories", 0, "still leads"),
    (copies_forgotten, "replication-copies", 0, "do not come together"),
]
"""Each flaw with a seed that detects it soon, and a pattern of its violations. Another violation, for example
an exception, would not show that the check of the flaw works."""


@pytest.mark.parametrize(("flaw", "story", "seed", "words"), FLAWS, ids=[flaw.__name__ for flaw, *_ in FLAWS])
def test_a_flaw_is_caught(
    flaw: Callable[[pytest.MonkeyPatch], None],
    story: str,
    seed: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flaw(monkeypatch)
    # The test first runs ``seed``, which detects the flaw. If a change of the code has changed all histories,
    # one of the next seeds must detect the flaw. Without a flaw, each story takes less than a minute. A flaw
    # may stop the progress of a story. Without the time limit, such a story would run for an hour.
    scenario = replace(SCENARIOS[story](), time_limit_s=200.0)
    seeds = range(seed, seed + 20)
    assert any(re.search(words, text) for one in seeds for text in run_seed(scenario, one).violations)
