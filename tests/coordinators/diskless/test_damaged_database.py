"""A coordinator never responds from a damaged SQLite file. The file is rebuilt from snapshot and log."""

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest
from diskless_house import House, batch, file, topic

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.coordinators.diskless.calls import DescribedPartition
from moldau.coordinators.diskless.store.database import Applied, Database
from moldau.runtime import ErrorCode, KafkaError

PAGE_BYTES = 4096
FILES = 300


async def fill(house: House) -> None:
    service = await house.start()
    await service.create_partitions(0, [topic(4)])
    calls = [
        file(f"{number:06d}", *[batch(index, 3, producer=(7, 0, 3 * number)) for index in range(4)])
        for number in range(FILES)
    ]
    await asyncio.gather(*[service.commit_file(0, call) for call in calls])
    await service.snapshot(0)
    later = [file(f"{number:06d}", batch(0, 3)) for number in range(FILES, FILES + 20)]
    await asyncio.gather(*[service.commit_file(0, call) for call in later])


async def state(house: House) -> Any:
    """The responses of the coordinator to ``describe_topics`` and ``list_files``. While it rebuilds the file,
    the requests are repeated."""
    async with asyncio.timeout(60):
        while True:
            try:
                described: list[DescribedPartition] = await house.service.describe_topics(0)
                return described, await house.service.list_files(0, limit=1_000)
            except KafkaError as error:
                if error.code is not ErrorCode.coordinator_load_in_progress:
                    raise
                await asyncio.sleep(0)


def overwrite(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as opened:
        opened.seek(position)
        opened.write(content)


def test_an_undamaged_file_is_used_without_a_rebuild(tmp_path: Path) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        await fill(house)
        await house.stop()
        inode = (tmp_path / f"{DISKLESS_METADATA_TOPIC}-0" / "state.sqlite").stat().st_ino
        await house.start()
        assert (tmp_path / f"{DISKLESS_METADATA_TOPIC}-0" / "state.sqlite").stat().st_ino == inode
        await house.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["state.sqlite", "state.sqlite-wal", "state.sqlite.sum"])
def test_a_folder_in_the_place_of_a_file_is_moved_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        await fill(house)
        expected = await state(house)
        await house.stop()
        path = tmp_path / f"{DISKLESS_METADATA_TOPIC}-0" / name
        path.unlink(missing_ok=True)
        (path / "inside").mkdir(parents=True)
        await house.start()
        assert await state(house) == expected
        await house.stop()
        assert not path.is_dir()
        assert (path.parent / f"{name}.folder-1" / "inside").is_dir()
        await house.start()
        assert await state(house) == expected
        await house.stop()

    asyncio.run(scenario())
    assert f"{name} is a folder" in caplog.text


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied", "zero page", "extended"])
@pytest.mark.parametrize("part", [0, 2, 5])
def test_a_file_that_changed_while_it_was_closed_is_rebuilt(tmp_path: Path, damage: str, part: int) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        await fill(house)
        expected = await state(house)
        await house.stop()
        path = tmp_path / f"{DISKLESS_METADATA_TOPIC}-0" / "state.sqlite"
        content = path.read_bytes()
        position = len(content) * part // 6 + 150
        match damage:
            case "flipped":
                overwrite(path, position, bytes(byte ^ 0xFF for byte in content[position : position + 8]))
            case "cut":
                path.write_bytes(content[:position])
            case "emptied":
                path.write_bytes(b"")
            case "zero page":
                overwrite(path, position // PAGE_BYTES * PAGE_BYTES, bytes(PAGE_BYTES))
            case "extended":
                path.write_bytes(content + content[position:])
        await house.start()
        assert await state(house) == expected
        await house.stop()

    asyncio.run(scenario())


def test_a_damaged_sum_costs_a_rebuild_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        await fill(house)
        expected = await state(house)
        await house.stop()
        (tmp_path / "state.sqlite.sum").write_bytes(b"garbage")
        await house.start()
        assert await state(house) == expected
        await house.stop()

    asyncio.run(scenario())


def test_damage_that_is_found_while_it_runs_is_rebuilt(tmp_path: Path) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        await fill(house)
        expected = await state(house)
        database = house.store.database
        database.connection.execute("pragma wal_checkpoint(truncate)")
        database.connection.pragma("cache_size", 1)
        database.connection.execute("pragma shrink_memory")
        path = tmp_path / f"{DISKLESS_METADATA_TOPIC}-0" / "state.sqlite"
        for page in range(1, path.stat().st_size // PAGE_BYTES):
            overwrite(path, page * PAGE_BYTES, b"\xff" * PAGE_BYTES)
        before = house.store
        with pytest.raises(KafkaError) as raised:
            await house.service.list_files(0, limit=1_000)
        assert raised.value.code is ErrorCode.coordinator_load_in_progress
        assert await state(house) == expected
        assert house.store is not before
        call = file("another", batch(0, 3))
        await house.service.commit_file(0, call)
        await house.stop()
        await house.start()
        assert (await state(house))[1][-1].object_key == "another"
        await house.stop()

    asyncio.run(scenario())


def test_a_transaction_that_cannot_be_committed_ends() -> None:
    """The next transaction must be possible, also if SQLite leaves the transaction open after the error."""
    database = Database(apsw.Connection(":memory:"), new_for="log")
    database.connection.execute(
        "pragma foreign_keys = on; create table parents (id integer primary key);"
        "create table children (parent references parents deferrable initially deferred)"
    )
    with pytest.raises(apsw.ConstraintError), database.transaction():
        database.connection.execute("insert into children values (1)")
    assert not database.connection.in_transaction
    with database.transaction():
        database.set_applied(Applied(5, 1))
    assert database.applied() == Applied(5, 1)
