"""The order of a broker's commits at a coordinator on real files: on the wire, in the log, after a load."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from diskless_house import House, batch, file, topic

from moldau.coordinators.diskless.calls import FORGOTTEN, CommitPlace
from moldau.coordinators.diskless.calls.commit import COMMIT_FILE
from moldau.runtime import ErrorCode, KafkaError


def placed(key: str, number: int, open_from: int = 0, epoch: int = 7) -> object:
    return replace(file(key, batch()), place=CommitPlace(epoch, number, open_from))


def test_the_place_is_on_the_wire_from_version_3_on() -> None:
    call = placed("a", 4, 4)
    assert COMMIT_FILE.arguments(COMMIT_FILE.ask(0, call, 3, 1_000)).place == CommitPlace(7, 4, 4)
    # An older coordinator may only get the first open commit, because it decides commits as they arrive.
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
        assert passed.value.code is FORGOTTEN
        # It still waits for number 2, although number 3 arrives first.
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
