"""Scenarios of diskless topics whose records leave the WAL within seconds. The node and the store fail."""

from moldau.simulation.checks.consolidation_checks import ConsolidationAfterlife
from moldau.simulation.nemesis import Fault
from moldau.simulation.scenario import Scenario
from moldau.simulation.stories.diskless_stories import ALWAYS, story
from moldau.simulation.world.object_storage import TIER_CLASS_NAME

_PROPERTIES = {
    "remote.log.storage.manager.class.name": TIER_CLASS_NAME,
    "remote.log.metadata.topic.num.partitions": "3",
    # Small amounts are consolidated often, so that every run has many segments.
    "diskless.consolidation.interval.ms": "300",
    "diskless.consolidation.segment.bytes": "1500",
    "diskless.consolidation.max.age.ms": "2000",
}
_STORE = (Fault.STORE_DOWN, Fault.STORE_POOR, Fault.STORE_POOR)


def consolidation() -> Scenario:
    """The faults are kills at any step, pauses, broken links, losses of caches, and a store that is down,
    slow or throttled, or that does not respond."""
    return story((*ALWAYS, *_STORE), _PROPERTIES, ConsolidationAfterlife)


def consolidation_power() -> Scenario:
    """The faults of :func:`consolidation`, and also losses of power."""
    return story((*ALWAYS, *_STORE, *(Fault.POWER_LOSS,) * 4), _PROPERTIES, ConsolidationAfterlife)
