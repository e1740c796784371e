"""After a start that removed records from a log, the deletion of shared data waits for one grace period."""

import asyncio

import pytest

from moldau.server.deletion_hold import DeletionHold
from moldau.simulation.world.world import World
from moldau.storage.critical_logs.recovery_report import RecoveryReport, Repair, RepairKind


@pytest.mark.parametrize(
    ("kind", "is_held"), [(RepairKind.REBUILT, False), (RepairKind.TORN_TAIL, True), (RepairKind.LOST, True)]
)
def test_a_start_that_removed_records_delays_deletions_for_a_grace_period(
    kind: RepairKind, is_held: bool
) -> None:
    async def story() -> None:
        report = RecoveryReport()
        report.add(Repair(kind, "/data/t-0", "a reason"))
        hold = DeletionHold(report, 60_000, "objects")
        assert hold.is_on() is is_held
        await asyncio.sleep(59)
        assert hold.is_on() is is_held
        await asyncio.sleep(2)
        assert not hold.is_on()

    with World(1) as world:
        world.run(story())


def test_a_start_that_removed_no_records_does_not_delay_deletions() -> None:
    async def story() -> None:
        assert not DeletionHold(RecoveryReport(), 60_000, "objects").is_on()

    with World(1) as world:
        world.run(story())
