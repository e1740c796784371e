"""SQLite and the object store of the simulation."""

import asyncio
import gc
import random
import weakref

import pytest

from moldau.runtime import Machine
from moldau.simulation.world.disks.disk import MountedDisk, SimulatedDisk
from moldau.simulation.world.disks.sqlite import open_sqlite
from moldau.simulation.world.object_store import NoSuchObjectError, ObjectStoreError, SimulatedObjectStore
from moldau.simulation.world.process import Process
from moldau.simulation.world.world import World


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_committed_rows_survive_a_loss_of_power(journal: str) -> None:
    for seed in range(15):
        device = SimulatedDisk(random.Random(seed), lambda: 0, lambda _event: None)
        disk = device.mount(Process("first"))
        disk.make_dirs("/state")
        disk.sync_dir("/")
        connection = open_sqlite(disk, "/state/db")
        assert connection.pragma("journal_mode", journal) == journal
        connection.pragma("synchronous", "full")
        connection.execute("create table t (x integer primary key, v blob)")
        for number in range(10):
            connection.execute("insert into t values (?, ?)", (number, b"v" * 700))
        connection.execute("begin")
        connection.execute("insert into t values (100, zeroblob(20000))")
        disk.process.alive = False
        device.crash()
        heir = open_sqlite(device.mount(Process("second")), "/state/db")
        assert [row[0] for row in heir.execute("select x from t")] == list(range(10))
        assert heir.pragma("integrity_check") == "ok"
        heir.close()
        connection.close()


class _Program:
    """A program with a database. Only a simulated process has a reference to this program."""


def test_an_ended_world_with_an_open_database_is_freed() -> None:
    async def story(world: World) -> None:
        def begin(disk: MountedDisk) -> None:
            program = _Program()
            program.database = open_sqlite(disk, "/state.sqlite")  # type: ignore[attr-defined]
            program.database.execute("create table t (a)")  # type: ignore[attr-defined]
            disk.process.exhibit = program

        async def run(machine: Machine) -> None:
            assert isinstance(machine.disk, MountedDisk)
            begin(machine.disk)

        main = world.host("node-1").start(run).main
        assert main is not None
        await main

    with World(1) as world:
        world.run(story(world))
    ended = weakref.ref(world)
    del world
    gc.collect()
    assert ended() is None


def test_the_object_store_keeps_and_serves() -> None:
    async def story() -> None:
        store = SimulatedObjectStore(random.Random(1), lambda: 7)
        await store.put("wal/a", memoryview(b"0123456789"))
        await store.put("other", b"x")
        assert await store.get_range("wal/a", 3, 4) == b"3456"
        assert await store.list("wal/") == [("wal/a", 10, 7)]
        await store.delete(["wal/a", "absent"])
        with pytest.raises(NoSuchObjectError):
            await store.get_range("wal/a", 0, 1)
        assert (store.counts.puts, store.counts.gets, store.counts.deletes) == (2, 2, 1)

    with World(1) as world:
        world.run(story())
        assert world.loop.elapsed_s() > 0


def test_the_object_store_can_fail() -> None:
    async def story() -> None:
        store = SimulatedObjectStore(random.Random(1), lambda: 0)
        store.weather.answer_lost_chance = 1.0
        with pytest.raises(ObjectStoreError, match="no answer"):
            await store.put("a", b"took effect")
        store.weather.answer_lost_chance = 0.0
        assert await store.get_range("a", 0, 4) == b"took"
        store.weather.partial_read_chance = 1.0
        with pytest.raises(ObjectStoreError, match="broke off"):
            await store.get_range("a", 0, 4)
        store.weather.throttled_chance = 1.0
        with pytest.raises(ObjectStoreError, match="slow down"):
            await store.put("b", b"")
        store.weather.down = True
        with pytest.raises(ObjectStoreError, match="down"):
            await store.list("")
        assert list(store.objects) == ["a"]

    with World(2) as world:
        world.run(asyncio.wait_for(story(), 600))
