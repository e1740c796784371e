"""The conditions under which a broker searches the store for objects that no coordinator refers to. A scan
that runs too early would treat the objects of an unknown coordinator as orphans."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.diskless.manager import DisklessManager


def scanned(**more: Any) -> list[str]:
    """The steps of a scan on a broker that leads coordinator 0. ``more`` changes what the broker knows."""
    steps: list[str] = []

    def step(name: str) -> Callable[[], Awaitable[None]]:
        async def take() -> None:
            steps.append(name)

        return take

    state = {
        "deletions_are_held": False,
        "is_fenced": False,
        "has_wrong_clock": False,
        "is_active": True,
    } | more
    manager: Any = SimpleNamespace(
        _cluster=SimpleNamespace(
            deletions_are_held=lambda: state["deletions_are_held"],
            until_current=step("barrier"),
            is_fenced=lambda: state["is_fenced"],
            has_wrong_clock=lambda: state["has_wrong_clock"],
        ),
        unowned_files=SimpleNamespace(run=step("unowned files")),
        orphans=SimpleNamespace(run=step("orphans")),
        _claim=SimpleNamespace(ensure=step("claim")),
        _local=SimpleNamespace(coordinator_ids=[0], is_active=lambda _: state["is_active"]),
    )
    asyncio.run(DisklessManager._scan_for_orphans(manager))
    return steps


def test_a_scan_follows_a_read_barrier_at_the_controller() -> None:
    assert scanned() == ["barrier", "unowned files", "claim", "orphans"]


@pytest.mark.parametrize("condition", ["is_fenced", "has_wrong_clock"])
def test_a_broker_that_may_be_wrong_about_the_cluster_does_not_scan(condition: str) -> None:
    assert scanned(**{condition: True}) == ["barrier"]


def test_nothing_is_scanned_while_deletions_are_held() -> None:
    assert scanned(deletions_are_held=True) == []


def test_only_the_leader_of_the_first_coordinator_scans_the_store() -> None:
    assert scanned(is_active=False) == ["barrier", "unowned files"]
