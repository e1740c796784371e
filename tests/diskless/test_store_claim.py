"""Two clusters must never use the same place in a store, because each cluster would delete the objects of the
other cluster."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from moldau.diskless.store_claim import CLAIMS_FOLDER, StoreClaim
from moldau.objects import MemoryStorage, ObjectInfo, StorageError
from moldau.runtime import KafkaError, Machine, SystemClock
from moldau.server.identity import identify
from moldau.server.settings import development_config
from moldau.server.subsystems.diskless.first_start import refuse_foreign_store
from moldau.testing import Node


def test_a_store_is_claimed_once_and_refused_to_others() -> None:
    async def main() -> None:
        storage = MemoryStorage(SystemClock())
        claim = StoreClaim(storage, "one", "s3://bucket")
        await claim.ensure()
        await claim.ensure()
        with pytest.raises(StorageError, match="s3://bucket belongs to cluster one, and this is") as caught:
            await StoreClaim(storage, "two", "s3://bucket", source="/data/meta.properties").ensure()
        assert "/data/meta.properties" in str(caught.value)
        assert not caught.value.transient
        assert "\n" not in str(caught.value)
        await claim.ensure()
        await storage.delete([f"{CLAIMS_FOLDER}one"])
        await StoreClaim(storage, "two", "s3://bucket").ensure()
        with pytest.raises(StorageError, match="belongs to cluster two"):
            await claim.ensure()

    asyncio.run(main())


class BothAtOnce(MemoryStorage):
    """A store that returns the first listing of each of two clusters only when both have requested it. So
    neither listing contains the claim of the other cluster."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.barrier = asyncio.Barrier(2)
        self.listings = 0

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        self.listings += 1
        pages = [page async for page in super().list(prefix, start_after=start_after)]
        if self.listings <= 2:
            await self.barrier.wait()
        for page in pages:
            yield page


def test_at_most_one_of_two_simultaneous_claims_succeeds() -> None:
    async def main() -> None:
        storage = BothAtOnce()
        claims = [StoreClaim(storage, name, "memory://").ensure() for name in ("one", "two")]
        outcomes = await asyncio.gather(*claims, return_exceptions=True)
        assert sum(outcome is None for outcome in outcomes) <= 1
        assert len([key for key in storage._objects if key.startswith(CLAIMS_FOLDER)]) <= 1

    asyncio.run(main())


def test_a_formatted_node_that_has_not_run_is_refused_before_its_metadata_log_begins(tmp_path: Path) -> None:
    other = tmp_path / "store" / CLAIMS_FOLDER / "the-other"
    other.parent.mkdir(parents=True)
    other.write_text("the-other")
    machine = Machine.real()
    properties = {"diskless.storage.url": f"file://{tmp_path}/store"}
    config = development_config(f"{tmp_path}/data", 0, properties, diskless=True)
    identify(machine, config, format_new=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(KafkaError, match="belongs to cluster the-other, and this is cluster"):
        asyncio.run(refuse_foreign_store(config, machine))
    assert sorted(tmp_path.rglob("*")) == before
    other.unlink()
    asyncio.run(refuse_foreign_store(config, machine))


def test_a_second_cluster_does_not_start_on_the_store_of_another(tmp_path: Path) -> None:
    properties = {"diskless.storage.url": f"file://{tmp_path}/objects"}
    with Node(data=f"{tmp_path}/one", diskless=True, properties=properties):
        pass
    with pytest.raises(KafkaError, match=r"objects belongs to cluster .*, and this is cluster"):
        Node(data=f"{tmp_path}/two", diskless=True, properties=properties).start()
    with Node(data=f"{tmp_path}/one", diskless=True, properties=properties):
        pass
