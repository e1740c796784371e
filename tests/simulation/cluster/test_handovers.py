"""The check that a broker leads nothing after a clean stop, unless slow disks kept every controller from
responding."""

import asyncio
from collections.abc import Sequence

import pytest

from moldau.runtime import Machine
from moldau.simulation.cluster.handovers import Handovers, Span, commit_stalls, longest_stall_s
from moldau.simulation.history import History
from moldau.simulation.world.workers import SyncJob
from moldau.simulation.world.world import World

LOG = "/data/__cluster_metadata-0/00000000000000000000.log"


def sync(began_s: float, ended_s: float, path: str = LOG) -> SyncJob:
    return SyncJob(began_s, ended_s, (path,))


def verdict(
    jobs: dict[int, list[SyncJob]], stopped_after_s: float, controller_id: int | None = 1
) -> list[str]:
    """The violations after a stop of node 2 that began now. The times of ``jobs`` are relative to its
    beginning. Brokers wait for a response for 1 s."""

    async def story() -> list[str]:
        history = History(world.loop.elapsed_s)
        handovers = Handovers(world, history, (1, 2, 3), silence_s=1.0)
        began_s = world.loop.time()
        await asyncio.sleep(stopped_after_s)
        handovers.still_leads("node-2", controller_id, began_s)
        for node_id, done in jobs.items():
            world.host(f"node-{node_id}").sync_jobs += [
                SyncJob(began_s + each.began_s, began_s + each.ended_s, each.paths) for each in done
            ]
        handovers.check()
        handovers.check()  # each stop is checked once
        return history.violations

    with World(1) as world:
        found: list[str] = world.run(story())
        return found


STILL_LEADS = ["node-2 has stopped and still leads"]


@pytest.mark.parametrize(
    ("jobs", "stopped_after_s"),
    [
        pytest.param({1: [sync(-0.4, 1.2)]}, 1.03, id="the controller syncs all the time"),
        pytest.param({1: [sync(0.05, 0.5), sync(0.5, 1.04)]}, 1.06, id="one sync follows another"),
        pytest.param({2: [sync(-0.1, 1.1)], 3: [sync(0.0, 1.2)]}, 1.01, id="a majority syncs"),
        pytest.param({1: [sync(0.05, 0.6)], 2: [sync(0.5, 1.1)], 3: [sync(0.55, 1.1)]}, 1.07, id="in turn"),
        pytest.param({1: [sync(3.0, 4.5)]}, 4.2, id="it begins late"),
    ],
)
def test_a_broker_may_leave_if_slow_disks_prevent_all_responses(
    jobs: dict[int, list[SyncJob]], stopped_after_s: float
) -> None:
    assert verdict(jobs, stopped_after_s) == []


@pytest.mark.parametrize(
    ("jobs", "stopped_after_s"),
    [
        pytest.param({}, 1.03, id="no disk is slow"),
        pytest.param({1: [sync(-0.4, 0.8)]}, 1.03, id="the sync ends in time"),
        pytest.param({1: [sync(-0.4, 1.2)]}, 0.5, id="the broker gives up too early"),
        pytest.param({3: [sync(-0.4, 1.2)]}, 1.03, id="only another controller syncs"),
        pytest.param({1: [sync(-0.4, 1.2, "/data/events-0/0.log")]}, 1.03, id="another log is synced"),
        pytest.param({1: [sync(0.0, 0.5), sync(2.0, 2.5)]}, 3.0, id="the controller can respond in between"),
    ],
)
def test_a_broker_that_controllers_could_answer_must_not_lead(
    jobs: dict[int, list[SyncJob]], stopped_after_s: float
) -> None:
    assert verdict(jobs, stopped_after_s) == STILL_LEADS


def test_without_a_known_controller_only_a_majority_stalls() -> None:
    assert verdict({1: [sync(-0.4, 1.2)]}, 1.03, controller_id=None) == STILL_LEADS
    assert verdict({1: [sync(-0.4, 1.2)], 3: [sync(-0.4, 1.2)]}, 1.03, controller_id=None) == []


def test_stalls_that_touch_are_one_stall() -> None:
    syncs: dict[int, Sequence[Span]] = {1: [(1.0, 2.0), (2.0, 3.0)], 2: [(2.5, 4.0)], 3: [(2.8, 3.5)]}
    stalls = list(commit_stalls(syncs, 1))
    assert sum(ended_s - began_s for began_s, ended_s in stalls) == pytest.approx(2.5)
    assert longest_stall_s(stalls, (0.0, 9.0), 2.5) == pytest.approx(2.5)


def test_a_host_lists_the_jobs_that_sync() -> None:
    with World(3) as world:
        host = world.host("node-1")

        async def program(machine: Machine) -> tuple[float, float]:
            machine.disk.make_dirs("/data")
            file = machine.disk.open("/data/a.log", create=True)
            await machine.workers.run(file.write_at, 0, [b"a"])
            began_s = world.loop.time()
            await machine.workers.run(file.sync)
            return began_s, world.loop.time()

        process = host.start(program)
        assert process.main is not None
        began_s, ended_s = world.run(asyncio.wait_for(process.main, 100))
        (job,) = host.sync_jobs
        assert job.paths == ("/data/a.log",)
        assert (job.began_s, job.ended_s) == pytest.approx((began_s, ended_s))
