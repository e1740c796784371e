"""The change of one partition: the requested change, and the resulting election and end of a reassignment.
Pure.

:func:`change_partition` works in this order: apply the requested change; end a reassignment whose new
replicas are all in sync (KIP-455); record which replicas outside the in-sync set have all committed records
(KIP-966); elect a leader.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from uuid import UUID

from moldau.cluster.decisions.kinds.kind import TopicKind
from moldau.cluster.decisions.kinds.table import CLASSIC, kind_of
from moldau.cluster.decisions.partitions.placement import default_directory
from moldau.cluster.decisions.view import View
from moldau.cluster.image.image import ELIGIBLE_LEADER_REPLICAS_FEATURE, ResourceType
from moldau.cluster.image.partition import NO_LEADER, LeaderRecoveryState, PartitionRegistration
from moldau.cluster.image.topics_delta import NO_LEADER_CHANGE, NO_RECOVERY_CHANGE
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import DECISIVE_TOPICS
from moldau.protocol.records.metadata import PartitionChangeRecord

MIN_IN_SYNC_REPLICAS = "min.insync.replicas"


class Election(Enum):
    """The rule for choosing a leader."""

    ONLINE = "keep the leader if it can lead, else the first in-sync replica that can"
    PREFERRED = "the first replica if it is in sync and can lead, else as ONLINE"
    UNCLEAN = "as ONLINE, else the first replica that can lead, in sync or not"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """The properties of a topic on which changes of its partitions depend."""

    can_lead: Callable[[int, UUID], bool]
    """Whether a broker may lead with a replica in one of its log directories."""
    default_directory: Callable[[int], UUID]
    """The log directory of a broker's new replica, if the controller knows it (KIP-858)."""
    min_in_sync: int = 0
    """``min.insync.replicas`` if eligible leader replicas are recorded (KIP-966); otherwise 0."""
    kind: TopicKind = CLASSIC
    may_lose: bool = True
    """Whether the last known leader may be elected when no replica is complete, although it may lack
    records.
    """

    @property
    def keeps_eligible(self) -> bool:
        """Whether an in-sync set may become empty, because other replicas are known to be complete."""
        return self.min_in_sync > 0


def keeps_eligible(view: View) -> bool:
    """Whether the cluster has the feature of eligible leader replicas."""
    return view.image.features.get(ELIGIBLE_LEADER_REPLICAS_FEATURE, 0) > 0


def rules_of(view: View, topic: Topic) -> TopicRules:
    """The rules of a topic according to the metadata of the view."""
    kind = kind_of(topic)
    has_eligible = keeps_eligible(view) and kind.replicas_hold_data
    return TopicRules(
        can_lead=view.can_use,
        default_directory=lambda broker_id: default_directory(view.image, broker_id),
        min_in_sync=min_in_sync(view, topic.name) if has_eligible else 0,
        kind=kind,
        may_lose=topic.name not in DECISIVE_TOPICS,
    )


def min_in_sync(view: View, name: str) -> int:
    """``min.insync.replicas`` of a topic."""
    value = view.image.config(ResourceType.TOPIC, name).get(MIN_IN_SYNC_REPLICAS)
    if value is None:
        value = view.configs.default(ResourceType.TOPIC, MIN_IN_SYNC_REPLICAS)
    return int(value or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The requested change of a partition. ``None`` leaves a field unchanged."""

    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    recovery_state: LeaderRecoveryState | None = None
    election: Election = Election.ONLINE
    incomplete: int | None = None
    """A broker that may have lost records which it had acknowledged (KIP-966's unclean shutdown)."""
    directory: tuple[int, UUID] | None = None
    """A broker and the log directory of its replica (KIP-858)."""
    emptied: int | None = None
    """A broker whose replica begins anew, because the log directory that held it is gone."""


def change_partition(
    topic_id: UUID, index: int, partition: PartitionRegistration, rules: TopicRules, wanted: Wanted
) -> PartitionChangeRecord | None:
    """The record of a change; ``None`` when nothing changes.

    Without eligible leader replicas an in-sync set never becomes empty. Its last members stay in it without a
    leader, because only they have all records. A leader that stays keeps its epoch, and followers notice a
    smaller set by the partition epoch (KIP-841). If replicas are removed, the leader epoch is raised, which
    fences their fetches.
    """
    target = replace(
        partition,
        isr=partition.isr if wanted.isr is None else wanted.isr,
        replicas=partition.replicas if wanted.replicas is None else wanted.replicas,
        removing_replicas=partition.removing_replicas if wanted.removing is None else wanted.removing,
        adding_replicas=partition.adding_replicas if wanted.adding is None else wanted.adding,
    )
    incomplete = wanted.incomplete
    if wanted.emptied is not None:
        incomplete = wanted.emptied
        target = _without_records(target, wanted.emptied)
    if len(target.replicas) == 1:
        rules = replace(rules, min_in_sync=0)  # No other replica can be complete.
    if wanted.recovery_state is not None:
        target = replace(target, leader_recovery_state=wanted.recovery_state)
    if not rules.keeps_eligible and not target.isr:
        target = replace(target, isr=partition.isr)
    target = _with_directories(partition, _with_ended_move(target), rules, wanted.directory)
    target = _with_eligible(partition, target, rules, incomplete)
    target = _with_leader(partition, target, rules, wanted.election)
    return _record(topic_id, index, partition, target)


def _without_records(target: PartitionRegistration, broker_id: int) -> PartitionRegistration:
    """The partition after a replica has lost all its records."""
    last_known = target.last_known_eligible_leader_replicas
    return replace(
        target,
        isr=tuple(each for each in target.isr if each != broker_id),
        last_known_eligible_leader_replicas=tuple(each for each in last_known if each != broker_id),
    )


def _with_ended_move(target: PartitionRegistration) -> PartitionRegistration:
    """The partition with only its target replicas, when all of them are in sync (KIP-455)."""
    if not target.is_reassigning:
        return target
    replicas = tuple(each for each in target.replicas if each not in target.removing_replicas)
    isr = tuple(each for each in target.isr if each not in target.removing_replicas)
    if not replicas or not set(replicas) <= set(isr):
        return target
    return replace(target, replicas=replicas, isr=isr, removing_replicas=(), adding_replicas=())


def _with_eligible(
    partition: PartitionRegistration, target: PartitionRegistration, rules: TopicRules, incomplete: int | None
) -> PartitionRegistration:
    """Record the replicas that left the in-sync set when it became, or already was, too small for a commit.

    While fewer than ``min.insync.replicas`` replicas are in sync, the watermark does not move, so these
    replicas have all records below it.
    """
    eligible: tuple[int, ...] = ()
    if len(target.isr) < min(rules.min_in_sync, len(target.replicas)):
        complete = {*partition.isr, *partition.eligible_leader_replicas} - {*target.isr, incomplete}
        eligible = tuple(each for each in target.replicas if each in complete)
    return replace(target, eligible_leader_replicas=eligible)


def _with_leader(
    partition: PartitionRegistration, target: PartitionRegistration, rules: TopicRules, election: Election
) -> PartitionRegistration:
    leader, is_unclean = _elected(partition, target, rules, election)
    if is_unclean:
        # A complete replica has nothing to recover.
        must_recover = rules.kind.replicas_hold_data
        recovery = LeaderRecoveryState.RECOVERING if must_recover else target.leader_recovery_state
        target = replace(target, isr=(leader,), eligible_leader_replicas=(), leader_recovery_state=recovery)
    elif leader in target.eligible_leader_replicas:
        eligible = tuple(each for each in target.eligible_leader_replicas if each != leader)
        target = replace(target, isr=(leader,), eligible_leader_replicas=eligible)
    last_known = target.last_known_eligible_leader_replicas
    if leader != NO_LEADER or not rules.keeps_eligible:
        last_known = ()
    elif not target.isr and partition.has_leader:
        last_known = (partition.leader,)
    return replace(target, leader=leader, last_known_eligible_leader_replicas=last_known)


def _elected(
    partition: PartitionRegistration, target: PartitionRegistration, rules: TopicRules, election: Election
) -> tuple[int, bool]:
    """The leader, and whether it may lack committed records."""
    complete = target.isr or target.eligible_leader_replicas
    order = [partition.leader, *target.replicas]
    if election is Election.PREFERRED:
        order.insert(0, target.preferred_leader)

    def can_lead(replica: int) -> bool:
        return rules.can_lead(replica, target.directory_of(replica))

    for replica in order:
        if replica in complete and can_lead(replica):
            return replica, False
    last_known = target.last_known_eligible_leader_replicas
    may_be_last = rules.keeps_eligible and rules.may_lose and not complete and len(last_known) == 1
    if may_be_last and last_known[0] in target.replicas and can_lead(last_known[0]):
        # No complete replica can come back, and no other has more records than the last leader (KIP-966).
        return last_known[0], True
    if election is Election.UNCLEAN:
        leader = next((replica for replica in target.replicas if can_lead(replica)), NO_LEADER)
        return leader, leader != NO_LEADER
    return NO_LEADER, False


def _with_directories(
    partition: PartitionRegistration,
    target: PartitionRegistration,
    rules: TopicRules,
    assigned: tuple[int, UUID] | None,
) -> PartitionRegistration:
    if target.replicas == partition.replicas and assigned is None:
        return target
    known = {each: partition.directory_of(each) for each in partition.replicas}
    if assigned is not None:
        known[assigned[0]] = assigned[1]
    directories = tuple(
        known[replica] if replica in known else rules.default_directory(replica)
        for replica in target.replicas
    )
    return replace(target, directories=directories)


def _record(
    topic_id: UUID, index: int, partition: PartitionRegistration, target: PartitionRegistration
) -> PartitionChangeRecord | None:
    if target == partition:
        return None
    names_leader = target.leader != partition.leader or not set(partition.replicas) <= set(target.replicas)
    changed_recovery = target.leader_recovery_state != partition.leader_recovery_state
    return PartitionChangeRecord(
        partition_id=index,
        topic_id=topic_id,
        isr=_if_new(target.isr, partition.isr),
        leader=target.leader if names_leader else NO_LEADER_CHANGE,
        replicas=_if_new(target.replicas, partition.replicas),
        removing_replicas=_if_new(target.removing_replicas, partition.removing_replicas),
        adding_replicas=_if_new(target.adding_replicas, partition.adding_replicas),
        leader_recovery_state=target.leader_recovery_state if changed_recovery else NO_RECOVERY_CHANGE,
        directories=None if target.directories == partition.directories else target.directories,
        eligible_leader_replicas=_if_new(target.eligible_leader_replicas, partition.eligible_leader_replicas),
        last_known_elr=_if_new(
            target.last_known_eligible_leader_replicas, partition.last_known_eligible_leader_replicas
        ),
    )


def _if_new(new: tuple[int, ...], old: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if new == old else new
