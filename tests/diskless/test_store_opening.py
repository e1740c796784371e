"""A broker opens its object store at the start, or later if the store is down at the start."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from moldau.diskless.known_store import KnownStore
from moldau.diskless.store_claim import CLAIMS_FOLDER, StoreClaim
from moldau.diskless.store_opening import StoreOpening
from moldau.objects import MemoryStorage, ObjectInfo, StorageError, StorageSettings
from moldau.runtime import LocalDisk, SystemClock, UnexpectedErrors
from moldau.runtime.buffers import Buffer
from moldau.simulation.world.world import World

URL = "s3://bucket/cluster"


class MoodyStorage(MemoryStorage):
    """A store that can be down."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.is_down = False
        self.fails_after_uploads: int | None = None
        """The number of uploads after which requests fail."""
        self._upload_count = 0

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        await super().upload(key, data, length)
        self._upload_count += 1

    async def check(self) -> None:
        if self.is_down or self._upload_count == self.fails_after_uploads:
            raise StorageError("the store is down", transient=True)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        await self.check()
        async for page in super().list(prefix, start_after=start_after):
            yield page


class Broker:
    """A broker's store, and what the broker remembers of it."""

    def __init__(self, folder: Path) -> None:
        self.storage = MoodyStorage()
        self.known = KnownStore(LocalDisk(), str(folder), "own", StorageSettings(URL))
        claim = StoreClaim(self.storage, "own", URL)
        self.reasons: list[str] = []
        """Why the broker stops."""
        self.opening = StoreOpening(
            self.storage, claim, self.known, URL, UnexpectedErrors(), self.reasons.append
        )

    async def claims(self) -> list[str]:
        return [info.key async for page in self.storage.list(CLAIMS_FOLDER) for info in page]

    async def claim(self, cluster_id: str) -> None:
        await self.storage.upload(f"{CLAIMS_FOLDER}{cluster_id}", b"", 0)


def play(folder: Path, story: Callable[[Broker], Awaitable[None]]) -> None:
    async def playing() -> None:
        broker = Broker(folder)
        await story(broker)
        await broker.opening.end()

    with World(1) as world:
        world.run(playing())


def test_the_first_use_of_a_store_is_remembered_and_claimed(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await broker.opening.begin(had_coordinators=False)
        assert broker.known.is_known()
        assert await broker.claims() == [f"{CLAIMS_FOLDER}own"]
        assert broker.opening.notice is None

    play(tmp_path, story)


def test_an_unknown_store_that_is_down_ends_the_start(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.storage.is_down = True
        with pytest.raises(StorageError):
            await broker.opening.begin(had_coordinators=False)

    play(tmp_path, story)


def test_a_known_store_that_was_down_at_the_start_is_opened_later(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.storage.is_down = True
        await broker.opening.begin(had_coordinators=True)
        await asyncio.sleep(300)
        assert not broker.known.is_known()
        broker.storage.is_down = False
        await asyncio.sleep(40)
        assert broker.known.is_known()
        assert await broker.claims() == [f"{CLAIMS_FOLDER}own"]
        # The cluster has stored objects before, but its claim was not there.
        assert "the store was emptied" in (broker.opening.notice or "")

    play(tmp_path, story)


def test_a_store_that_came_back_without_loss_shows_no_fault(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.known.remember()
        await broker.claim("own")
        broker.storage.is_down = True
        await broker.opening.begin(had_coordinators=False)
        broker.storage.is_down = False
        await asyncio.sleep(60)
        assert (broker.opening.notice, broker.reasons) == (None, [])

    play(tmp_path, story)


def test_an_emptied_store_is_noticed_although_the_claim_needs_two_attempts(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.known.remember()
        broker.storage.fails_after_uploads = 1
        await broker.opening.begin(had_coordinators=False)
        assert broker.opening.notice is None
        broker.storage.fails_after_uploads = None
        await asyncio.sleep(60)
        assert "the store was emptied" in (broker.opening.notice or "")

    play(tmp_path, story)


def test_the_store_of_another_cluster_stops_the_broker(tmp_path: Path) -> None:
    """The other cluster would delete the objects of this broker."""

    async def story(broker: Broker) -> None:
        broker.known.remember()
        await broker.claim("other")
        broker.storage.is_down = True
        await broker.opening.begin(had_coordinators=False)
        assert broker.reasons == []
        broker.storage.is_down = False
        await asyncio.sleep(3)
        (reason,) = broker.reasons
        assert "belongs to cluster other" in reason
        assert await broker.claims() == [f"{CLAIMS_FOLDER}other"]

    play(tmp_path, story)
