"""The election of a partition's leader: its rules, and its effect on the in-sync set. Pure.

:func:`.partition_change.change_partition` elects a leader at each change of a partition.
``election_causes.py`` and ``lost_brokers.py`` decide when an election is necessary.
"""

from dataclasses import replace
from enum import Enum

from moldau.cluster.decisions.kinds.table import kind_of
from moldau.cluster.decisions.partitions.topic_rules import TopicRules
from moldau.cluster.decisions.view import View
from moldau.cluster.image.image import ResourceType
from moldau.cluster.image.partition import NO_LEADER, LeaderRecoveryState, PartitionRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import DECISIVE_TOPICS

UNCLEAN_LEADER_ELECTION_ENABLE = "unclean.leader.election.enable"


class Election(Enum):
    """The rules by which a leader can be chosen."""

    ONLINE = "keep the leader if it can lead, else the first in-sync replica that can"
    PREFERRED = "the first replica if it is in sync and can lead, else as ONLINE"
    UNCLEAN = "as ONLINE, else the first replica that can lead, in sync or not"


def recovery_election(view: View, topic: Topic) -> Election:
    """Return the rule for an election in which no in-sync replica can lead."""
    if not kind_of(topic).replicas_hold_data:
        return Election.UNCLEAN
    if topic.name in DECISIVE_TOPICS:
        return Election.ONLINE
    configs = view.image.config(ResourceType.TOPIC, topic.name)
    allowed = configs.get(UNCLEAN_LEADER_ELECTION_ENABLE)
    if allowed is None:
        allowed = view.configs.default(ResourceType.TOPIC, UNCLEAN_LEADER_ELECTION_ENABLE)
    return Election.UNCLEAN if (allowed or "").lower() == "true" else Election.ONLINE


def with_leader(
    partition: PartitionRegistration, target: PartitionRegistration, rules: TopicRules, election: Election
) -> PartitionRegistration:
    """Return the partition with its elected leader, if a replica can lead, and with the resulting in-sync
    set."""
    leader, is_unclean = _elected(partition, target, rules, election)
    if is_unclean:
        # If replicas of this kind have no data, the leader does not have to recover any data.
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
    """Returns the leader, and whether the leader may lack committed records."""
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
        # There is no complete replica, and no other replica has more records than the last known leader
        # (KIP-966).
        return last_known[0], True
    if election is Election.UNCLEAN:
        leader = next((replica for replica in target.replicas if can_lead(replica)), NO_LEADER)
        return leader, leader != NO_LEADER
    return NO_LEADER, False
