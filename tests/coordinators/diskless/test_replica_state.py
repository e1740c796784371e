"""The state of a diskless coordinator depends only on its log, so all replicas have exactly the same
state."""

import asyncio
import json
import random
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from diskless_house import OTHER, TOPIC, House, batch, file, topic

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.coordinators.diskless.calls import (
    TRANSACTIONAL,
    FileToHandOver,
    GuardToIssue,
    MarkerToWrite,
    OffsetToDelete,
    PruneCall,
)
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.coordinators.diskless.store.schema import TABLE_NAMES
from moldau.runtime import ErrorCode

DAY_MS = 86_400_000


def state_of(house: House) -> bytes:
    """The state on which the coordinator's decisions depend, and all tables of its store.

    ``files.unused_since_ms`` is not included, because each replica measures that time itself.
    """
    store = house.store
    store.write_all()
    while store.materialiser.to_trim:
        store.materialiser.trim_some(house.clock.now_ms())
    shard = house.service.runtime.shards()[0]
    decided = [
        (
            found.number,
            found.id,
            (found.log_start, found.wal_start, found.next, found.prune_epoch, found.last_prune),
            sorted(found.producers.items()),
            None if found.transactions is None else [found.transactions.row(each) for each in range(9)],
        )
        for found in sorted(shard.partitions, key=lambda found: found.number)
    ]
    tables: dict[str, Any] = {name: store.database.all(f"select * from {name}") for name in TABLE_NAMES}
    tables["files"] = (row[:-1] for row in tables["files"])
    memory = (sorted(shard.files.results()), sorted(shard.files.closed()))
    return json.dumps(
        [decided, memory, {name: sorted(rows) for name, rows in tables.items()}], default=repr
    ).encode()


def copied(house: House, folder: Path, ahead_ms: int) -> House:
    """A replica that has the same log, no database, and a clock that is ahead."""
    shutil.copytree(house.folder, folder / f"{DISKLESS_METADATA_TOPIC}-0")
    replica = House(folder, topic_id=UUID(int=77))
    replica.clock.time_ms = house.clock.time_ms + ahead_ms
    return replica


async def replayed(house: House, folder: Path, ahead_ms: int) -> bytes:
    replica = copied(house, folder, ahead_ms)
    await replica.start()
    state = state_of(replica)
    await replica.stop()
    return state


@pytest.mark.parametrize("ahead_ms", [0, 7 * DAY_MS])
def test_replicas_remove_the_state_that_the_leader_removes(tmp_path: Path, ahead_ms: int) -> None:
    async def scene() -> None:
        house = House(tmp_path / "leader", topic_id=UUID(int=77))
        service = await house.start()
        await service.create_partitions(0, [topic()])
        await service.commit_file(0, file("quiet", batch(0, 2, producer=(7, 0, 0))))
        house.clock.time_ms += 40 * DAY_MS
        await service.commit_file(
            0, file("busy", batch(0, 2, producer=(8, 0, 0)), created=house.clock.time_ms)
        )
        await service.forget_old(0)
        shard = house.service.runtime.shards()[0]
        assert [sorted(found.producers) for found in shard.partitions] == [[8], []]
        assert [key for key, _ in shard.files.results()] == ["busy"]
        await service.commit_file(0, file("last", batch(1, 1), created=house.clock.time_ms))
        state = state_of(house)
        await house.stop()
        assert await replayed(house, tmp_path / "replica", ahead_ms) == state

    asyncio.run(asyncio.wait_for(scene(), 600))


class Author:
    """Writes a random history, in which the clock jumps forward and back."""

    def __init__(self, house: House, service: DisklessCoordinator, chance: random.Random) -> None:
        self._house = house
        self._service = service
        self._chance = chance
        self._files = 0
        self._sequences: dict[int, int] = {}

    async def step(self) -> None:
        await self._chance.choice(
            [self.commit] * 6
            + [self.transact] * 3
            + [self.end] * 2
            + [self.wait] * 2
            + [self.delete, self.prune, self.close, self.forget]
        )()

    async def commit(self) -> None:
        self._files += 1
        batches = []
        for _ in range(self._chance.randint(1, 4)):
            producer = self._chance.choice([None, 1, 2, 3])
            records = self._chance.randint(1, 3)
            sequence = self._sequences.get(producer or 0, 0)
            batches.append(
                batch(0, records, topic=TOPIC, producer=None if producer is None else (producer, 0, sequence))
            )
            self._sequences[producer or 0] = sequence + records
        call = file(f"f{self._files}", *batches, created=self._house.clock.time_ms)
        await self._service.commit_file(0, call)

    async def transact(self) -> None:
        producer_id = self._chance.choice([4, 5])
        self._files += 1
        (guard,) = await self._service.guard_transactions(0, [GuardToIssue(TOPIC, 0, producer_id, 0)])
        sequence = self._sequences.get(producer_id, 0)
        made = batch(0, 2, topic=TOPIC, producer=(producer_id, 0, sequence))
        call = file(
            f"f{self._files}",
            made._replace(flags=TRANSACTIONAL, guard=guard.guard),
            created=self._house.clock.time_ms,
        )
        (result,) = (await self._service.commit_file(0, call)).batches
        if result.error is ErrorCode.none:
            self._sequences[producer_id] = sequence + 2

    async def end(self) -> None:
        producer_id, commits = self._chance.choice([4, 5]), self._chance.random() < 0.5
        await self._service.end_transactions(0, [MarkerToWrite(TOPIC, 0, producer_id, 0, 1, commits)])

    async def wait(self) -> None:
        self._house.clock.time_ms += self._chance.choice([1_000, 400_000, 2 * DAY_MS, -60_000])

    async def delete(self) -> None:
        await self._service.delete_records(0, [OffsetToDelete(TOPIC, 0, -1)])

    async def prune(self) -> None:
        (found, *_) = await self._service.describe_topics(0, [TOPIC])
        start, end = found.wal_start_offset, found.high_watermark
        if start < end:
            await self._service.prune(0, PruneCall(TOPIC, 0, start, self._chance.randint(start + 1, end), 1))

    async def close(self) -> None:
        key = f"closed{self._chance.randint(0, 3)}"
        if self._chance.random() < 0.5:
            await self._service.close_files(0, [key])
        else:
            created_ms = self._house.clock.time_ms
            await self._service.take_over(0, FileToHandOver(key, (0,), 100, created_ms))

    async def forget(self) -> None:
        await self._service.forget_old(0)


@pytest.mark.parametrize("seed", range(12))
def test_replicas_agree_over_random_histories_snapshots_and_restarts(tmp_path: Path, seed: int) -> None:
    async def scene() -> None:
        chance = random.Random(seed)
        house = House(tmp_path / "leader", topic_id=UUID(int=77))
        service = await house.start()
        await service.create_partitions(0, [topic(), topic(topic_id=OTHER)])
        author = Author(house, service, chance)
        for number in range(60):
            await author.step()
            if number == 30 and seed % 2:
                assert await service.snapshot(0) is not None
        state = state_of(house)
        await house.stop()
        assert await replayed(house, tmp_path / "ahead", 3 * DAY_MS) == state
        assert await replayed(house, tmp_path / "behind", -3 * DAY_MS) == state
        service = await house.start()  # this replica has its own database
        assert state_of(house) == state
        await house.stop()

    asyncio.run(asyncio.wait_for(scene(), 600))
