"""The scenarios of damaged files. They differ in how a node ends before the damage."""

from typing import Final

from moldau.simulation.damage.story import DamageStory, End
from moldau.simulation.scenario import Scenario
from moldau.simulation.world.world import World

_SYNCED: Final = {"log.flush.interval.messages": "1"}


def kill_damage() -> Scenario:
    """The process is killed before the damage."""
    return scenario(End.KILL)


def stop_damage() -> Scenario:
    """The node stops cleanly before the damage. Its start should therefore need no recovery."""
    return scenario(End.STOP)


def power_damage() -> Scenario:
    """The machine loses its power before the damage. Every append was synced."""
    return scenario(End.POWER_LOSS)


def scenario(end: End, kinds: str = "") -> Scenario:
    """Return a scenario in which processes end in the way ``end``. Only kinds of files whose name contains
    the text ``kinds`` are damaged."""
    properties = _SYNCED if end is End.POWER_LOSS else {}

    def story(world: World, _scenario: Scenario) -> DamageStory:
        return DamageStory(world, end, properties=properties, kinds=kinds)

    return Scenario(story=story, time_limit_s=8_000.0, step_limit=4_000_000, cpu_limit_s=300.0)
