"""The change of one partition: the requested change, and the resulting election and end of a reassignment.
Pure.

:func:`change_partition` works in this order: apply the requested change; end a reassignment whose new
replicas are all in sync (KIP-455); record which replicas outside the in-sync set have all committed records
(KIP-966); elect a leader.
"""

from dataclasses import dataclass, replace
from uuid import UUID

from moldau.cluster.decisions.partitions.leader_choice import Election, with_leader
from moldau.cluster.decisions.partitions.topic_rules import TopicRules
from moldau.cluster.image.partition import LeaderRecoveryState, PartitionRegistration
from moldau.cluster.image.topics_delta import NO_LEADER_CHANGE, NO_RECOVERY_CHANGE
from moldau.protocol.records.metadata import PartitionChangeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The requested change of a partition. A field with the value ``None`` does not change."""

    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    recovery_state: LeaderRecoveryState | None = None
    election: Election = Election.ONLINE
    incomplete: int | None = None
    """A broker that may have lost acknowledged records (KIP-966's unclean shutdown)."""
    directory: tuple[int, UUID] | None = None
    """A broker and the log directory of its replica (KIP-858)."""
    emptied: int | None = None
    """A broker whose replica starts again without records, because the replica's log directory is permanently
    lost."""


def change_partition(
    topic_id: UUID, index: int, partition: PartitionRegistration, rules: TopicRules, wanted: Wanted
) -> PartitionChangeRecord | None:
    """The record of a change; ``None`` when nothing changes.

    Without the feature of eligible leader replicas, an in-sync set never becomes empty. If the last members
    cannot lead, they stay in the set and the partition has no leader, because only these members have all
    records. If the leader does not change, the leader epoch does not change either. Followers detect a
    smaller in-sync set by the partition epoch (KIP-841). But if replicas are removed, the leader epoch is
    raised, so that fetches of the removed replicas are fenced.
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
        rules = replace(rules, min_in_sync=0)  # there is no other replica that could be complete
    if wanted.recovery_state is not None:
        target = replace(target, leader_recovery_state=wanted.recovery_state)
    if not rules.keeps_eligible and not target.isr:
        target = replace(target, isr=partition.isr)
    target = _with_directories(partition, _with_ended_move(target), rules, wanted.directory)
    target = _with_eligible(partition, target, rules, incomplete)
    target = with_leader(partition, target, rules, wanted.election)
    return _record(topic_id, index, partition, target)


def _without_records(target: PartitionRegistration, broker_id: int) -> PartitionRegistration:
    """Return the partition after a replica has lost all its records."""
    last_known = target.last_known_eligible_leader_replicas
    return replace(
        target,
        isr=tuple(each for each in target.isr if each != broker_id),
        last_known_eligible_leader_replicas=tuple(each for each in last_known if each != broker_id),
    )


def _with_ended_move(target: PartitionRegistration) -> PartitionRegistration:
    """Return the partition with only its target replicas, when all of them are in sync (KIP-455)."""
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
    """Return the partition with its eligible leader replicas. A partition has them while its in-sync set is
    too small for a commit. They are complete replicas that left the in-sync set by this change or earlier.

    While fewer than ``min.insync.replicas`` replicas are in sync, the high watermark does not move. Therefore
    these replicas have all records below the high watermark.
    """
    eligible: tuple[int, ...] = ()
    if len(target.isr) < min(rules.min_in_sync, len(target.replicas)):
        complete = {*partition.isr, *partition.eligible_leader_replicas} - {*target.isr, incomplete}
        eligible = tuple(each for each in target.replicas if each in complete)
    return replace(target, eligible_leader_replicas=eligible)


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
