"""Six brokers in three racks, in virtual time. Replicas and coordinators move, a topic is deleted and created
again, and brokers and the store fail, all while clients work."""

from collections.abc import Callable
from typing import Any

import pytest

from moldau.coordinators.diskless.calls import FileToHandOver, FreeFile
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.coordinators.diskless.state.commit import _CommitRule
from moldau.diskless.image_sync import ImageSync
from moldau.replication.core.leader import LeaderReplica
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

STORY = "diskless-racks-changes"


@pytest.mark.parametrize("seed", [1, 9])
def test_nothing_is_lost_or_left_over_while_everything_moves(seed: int) -> None:
    assert run_seed(SCENARIOS[STORY](), seed).violations == []


def test_shared_objects_get_other_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the owner's part of an object is deleted with a topic, another coordinator takes over the object."""
    taken_over: list[str] = []
    take_over = DisklessCoordinator.take_over

    async def noted(self: DisklessCoordinator, coordinator_id: int, file: FileToHandOver) -> None:
        await take_over(self, coordinator_id, file)
        taken_over.append(file.object_key)

    monkeypatch.setattr(DisklessCoordinator, "take_over", noted)
    assert run_seed(SCENARIOS[STORY](), 3).violations == []
    assert len(set(taken_over)) >= 5


def owners_keep_unused_files(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a coordinator does not hand over its unused files."""
    patch.setattr(DisklessCoordinator, "files_to_hand_over", lambda *given: [])


def owners_delete_shared_objects(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a coordinator deletes an unused file, although others have batches in it."""
    free_files = DisklessCoordinator.free_files
    shared_files = DisklessCoordinator.files_to_hand_over

    def all_unused(
        self: DisklessCoordinator, coordinator_id: int, before_ms: int, limit: int
    ) -> list[FreeFile]:
        shared = [
            FreeFile(file.object_key, 0, file.size_bytes) for file in shared_files(self, coordinator_id)
        ]
        return [*free_files(self, coordinator_id, before_ms, limit), *shared]

    owners_keep_unused_files(patch)
    patch.setattr(DisklessCoordinator, "free_files", all_unused)


def deleted_topics_stay(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: coordinators are not told which topics are deleted."""

    async def nothing(self: ImageSync, coordinator_id: int, topic_ids: Any) -> None:
        return None

    patch.setattr(ImageSync, "_delete", nothing)


def batches_may_overtake(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a batch is accepted although the batch before it is missing."""
    patch.setattr(_CommitRule, "_check_ahead", lambda *given: None)


def fetch_counts_for_all(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a follower's fetch acknowledges all records of its leader."""
    fetched: Callable[..., bool] = LeaderReplica.follower_fetched

    def generous(self: LeaderReplica, replica_id: int, fetch_offset: int, now_ms: int, **more: Any) -> bool:
        return fetched(self, replica_id, self.log_end_offset, now_ms, **more)

    patch.setattr(LeaderReplica, "follower_fetched", generous)


SEEDS_MAX = 8
"""The number of seeds to try. The first seed finds the flaw, unless a change of the code has changed the
histories."""
FLAWS = [
    (owners_keep_unused_files, 3),
    (owners_delete_shared_objects, 3),
    (deleted_topics_stay, 0),
    (batches_may_overtake, 0),
    (fetch_counts_for_all, 3),
]


@pytest.mark.parametrize(("flaw", "seed"), FLAWS, ids=[flaw.__name__ for flaw, _ in FLAWS])
def test_a_flaw_is_caught(
    flaw: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw(monkeypatch)
    scenario = SCENARIOS[STORY]()
    assert any(run_seed(scenario, each).violations for each in range(seed, seed + SEEDS_MAX))
