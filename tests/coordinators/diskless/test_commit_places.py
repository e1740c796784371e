"""A coordinator with real files keeps the order of a broker's commits: in requests, in its log, and
after a load."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from diskless_house import House, batch, file, topic

from moldau.coordinators.diskless.calls import (
    NUMBER_PASSED,
    Backlog,
    CommitFileCall,
    CommitFileResult,
    CommitPlace,
)
from moldau.coordinators.diskless.calls.subjects.commit import COMMIT_FILE
from moldau.coordinators.diskless.calls.subjects.commit_parts import COMMIT_PARTS
from moldau.coordinators.diskless.led_coordinator import MeasuredBacklogs
from moldau.coordinators.diskless.state import commit
from moldau.runtime import ErrorCode, KafkaError
from moldau.simulation.world.world import World


def placed(key: str, number: int, open_from: int = 0, epoch: int = 7) -> CommitFileCall:
    return replace(file(key, batch()), place=CommitPlace(epoch, number, open_from))


def test_the_place_is_on_the_wire_from_version_3_on() -> None:
    call = placed("a", 4, 4)
    assert COMMIT_FILE.arguments(COMMIT_FILE.ask(0, call, 3, 1_000)).place == CommitPlace(7, 4, 4)
    # An older coordinator decides commits in the order of their arrival. Therefore the broker sends only the
    # first open commit to such a coordinator.
    assert COMMIT_FILE.arguments(COMMIT_FILE.ask(0, call, 2, 1_000)).place is None
    with pytest.raises(KafkaError) as refused:
        COMMIT_FILE.ask(0, placed("b", 5, 4), 2, 1_000)
    assert refused.value.code is ErrorCode.unsupported_version


@pytest.mark.parametrize("has_database", [True, False])
def test_a_new_leader_knows_the_numbers_of_the_log(tmp_path: Path, has_database: bool) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic()])
        later = service.commit_file(0, placed("b", 1))
        await service.commit_file(0, placed("a", 0))
        assert (await later).batches[0].base_offset == 1
        await house.stop()
        if not has_database:
            house.delete_database()
        service = await house.start()
        with pytest.raises(KafkaError) as passed:
            await service.commit_file(0, placed("late", 1))
        assert passed.value.code is NUMBER_PASSED
        # commit number 3 arrives before number 2, so the coordinator holds it until number 2 arrives
        last, next_one = service.commit_file(0, placed("d", 3)), service.commit_file(0, placed("c", 2))
        assert (await next_one).batches[0].base_offset == 2
        assert (await last).batches[0].base_offset == 3
        await house.stop()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_commits_that_wait_fail_when_the_coordinator_leaves(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic()])
        waiting = service.commit_file(0, placed("b", 1))
        service.unload(0)
        with pytest.raises(KafkaError) as moved:
            await waiting
        assert moved.value.code is ErrorCode.not_coordinator
        await house.stop()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_too_many_commits_do_not_wait(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic()])
        waiting = [service.commit_file(0, placed(f"f{number}", number)) for number in range(1, 65)]
        with pytest.raises(KafkaError) as refused:
            await service.commit_file(0, placed("more", 65))
        assert refused.value.code is ErrorCode.coordinator_not_available
        await service.commit_file(0, placed("f0", 0))
        assert [(await each).batches[0].base_offset for each in waiting] == list(range(1, 65))
        await house.stop()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_commit_that_waits_for_too_long_is_answered(tmp_path: Path) -> None:
    """A connection sends responses in the order of the requests. So without a response to this commit, no
    later request on the connection would get its response. A jump of the machine's clock does not change the
    time limit of the wait."""

    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic()])
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        waiting = service.commit_file(0, placed("b", 1))
        house.clock.time_ms -= 500_000
        with pytest.raises(KafkaError) as refused:
            await waiting
        assert refused.value.code is ErrorCode.coordinator_not_available
        assert 1 <= loop.time() - began_s < 1.1
        repeated = service.commit_file(0, placed("b", 1))
        assert (await service.commit_file(0, placed("a", 0))).batches[0].base_offset == 0
        assert (await repeated).batches[0].base_offset == 1
        await house.stop()

    with World(1) as world:
        world.run(scene())


def test_a_waiting_commit_is_answered_when_its_decision_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide_file = commit.decide_file

    def faulty(table: object, call: CommitFileCall, *more: object) -> object:
        if call.object_key == "b":
            raise ValueError("defect")
        return decide_file(table, call, *more)  # type: ignore[arg-type]

    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic()])
        waiting = [service.commit_file(0, placed(key, number)) for key, number in (("b", 1), ("c", 2))]
        monkeypatch.setattr(commit, "decide_file", faulty)
        await service.commit_file(0, placed("a", 0))
        with pytest.raises(KafkaError) as failed:
            await waiting[0]
        assert failed.value.code is ErrorCode.unknown_server_error
        assert (await waiting[1]).batches[0].base_offset == 1
        assert house.machine.unexpected.count == 1
        await house.stop()

    asyncio.run(asyncio.wait_for(scene(), 5))


def test_known_results_do_not_wait_for_a_slow_coordinator() -> None:
    """One request contains the parts of a file for several coordinators, and one response contains all their
    results. If one coordinator does not respond in time, the response still contains the results of the
    others."""
    known = CommitFileResult([])

    class Coordinators:
        def __init__(self) -> None:
            self.backlogs = MeasuredBacklogs()
            self.backlogs.measured({2: Backlog(size_bytes=70)})

        def commit_file(
            self, coordinator_id: int, call: CommitFileCall
        ) -> "asyncio.Future[CommitFileResult]":
            answer: asyncio.Future[CommitFileResult] = asyncio.get_running_loop().create_future()
            if coordinator_id != 1:
                asyncio.get_running_loop().call_later(0.1 * coordinator_id, answer.set_result, known)
            return answer

    async def scene() -> None:
        parts = [(number, file("a", batch())) for number in range(4)]
        results = await COMMIT_PARTS.serve(Coordinators(), 0, parts)  # type: ignore[arg-type]
        found = {number: result for number, result in results if isinstance(result, CommitFileResult)}
        assert {number: result.backlog_bytes for number, result in found.items()} == {0: -1, 2: 70, 3: -1}
        late = dict(results)[1]
        assert isinstance(late, KafkaError)
        assert late.code is ErrorCode.request_timed_out

    with World(1) as world:
        world.run(asyncio.wait_for(scene(), 15))
