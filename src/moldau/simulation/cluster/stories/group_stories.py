"""Replicated partitions with consumer groups. The groups commit offsets and change their members while their
coordinators move between nodes."""

from dataclasses import replace
from functools import partial
from typing import Final

from moldau.simulation.cluster.clocks import JUMP_MS, KEPT_FOR_LESS_THAN_A_JUMP
from moldau.simulation.cluster.stories.replication_stories import (
    SHORT_METADATA,
    SYNCED,
    ReplicationStory,
    scenario_of,
)
from moldau.simulation.nemesis import Fault
from moldau.simulation.scenario import Scenario

_GROUPS: Final = {
    "group.initial.rebalance.delay.ms": "200",
    # Compaction is frequent, so that coordinators load compacted logs.
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.segment.delete.delay.ms": "500",
}


def replication_groups() -> Scenario:
    """Groups commit offsets and change their members while their coordinators move between nodes."""
    faults = (*(Fault.KILL,) * 4, *(Fault.STOP, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY) * 2, Fault.RESET)
    return _with_groups(scenario_of(_GROUPS, faults))


def replication_groups_power() -> Scenario:
    """Nodes of coordinators lose power. Their logs are synced before any response is sent."""
    faults = (*(Fault.POWER_LOSS,) * 3, Fault.KILL, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY)
    return _with_groups(scenario_of({**_GROUPS, **SYNCED}, faults))


def replication_groups_moves() -> Scenario:
    """Partitions are moved between brokers, also the partitions of coordinators, and preferred leaders are
    elected. Brokers fail meanwhile."""
    faults = (*(Fault.KILL,) * 3, *(Fault.STOP,) * 2, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY)
    properties = {**_GROUPS, **SHORT_METADATA}
    scenario = _with_groups(scenario_of(properties, faults))
    return replace(scenario, story=partial(ReplicationStory, properties=properties, moves=True))


def replication_clock() -> Scenario:
    """The nodes' clocks jump independently by an hour, forwards and backwards. Records are kept for 45
    minutes.

    No node is restarted, because a node cannot detect at its start that its clock is wrong.
    """
    faults = (*(Fault.CLOCK_JUMP,) * 6, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY, Fault.RESET)
    scenario = _with_groups(scenario_of({**_GROUPS, **KEPT_FOR_LESS_THAN_A_JUMP}, faults))
    weather = replace(scenario.weather, clock_skew_ms=JUMP_MS)
    return replace(scenario, weather=weather, stamped=True, fault_count=12)


def _with_groups(scenario: Scenario) -> Scenario:
    return replace(
        scenario,
        producer_count=1,
        plain_producer_count=1,
        consumer_count=1,
        records_per_producer=200,
        committer_count=3,
        commits_per_committer=30,
        group_member_count=3,
        joins_per_member=8,
        watches_coordinators=True,
    )
