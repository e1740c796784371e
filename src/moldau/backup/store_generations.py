"""The generation of a cluster in its object store. Nodes of earlier generations stop.

A restore begins a new generation, and stores an object for it. An object store cannot refuse the requests of
old nodes. Therefore, if a node of the old cluster still runs, the node must check for that object before it
changes the store.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from moldau.objects.storage import ObjectStorage, StorageError

logger = logging.getLogger(__name__)

__all__ = [
    "GENERATIONS_FOLDER",
    "LEASE_INTERVALS",
    "GenerationFence",
    "begin_generation",
    "latest_generation",
]

GENERATIONS_FOLDER: Final = ".moldau/backup/generations/"
LEASE_INTERVALS: Final = 2
"""Number of save intervals for which a node may write after its last check for a later generation."""
_DIGITS: Final = 10
_EARLY: Final = 0.8
"""The part of ``lease_s`` that must pass before an upload begins the next check."""


async def latest_generation(storage: ObjectStorage) -> int:
    """The number of times that the cluster in a store was restored. Raises ``StorageError``."""
    latest = 0
    async for page in storage.list(GENERATIONS_FOLDER):
        for info in page:
            name = info.key.rpartition("/")[2]
            if len(name) == _DIGITS and name.isascii() and name.isdigit():
                latest = max(latest, int(name))
    return latest


def generation_key(generation: int) -> str:
    """The key of the object that a restore stores for its generation."""
    return f"{GENERATIONS_FOLDER}{generation:0{_DIGITS}d}"


async def begin_generation(storage: ObjectStorage, generation: int, cluster_id: str) -> None:
    """Store the object of a generation. Nodes of earlier generations then stop. Raises ``StorageError``."""
    content = cluster_id.encode()
    await storage.upload(generation_key(generation), content, len(content))


class GenerationFence:
    """Stops this node if its cluster was restored from the store, because the restored cluster uses the store
    from then on. Also refuses changes of a store that lacks the generation of this node's cluster.

    Implements :class:`moldau.objects.fence.StoreFence`. A deletion checks for a later generation directly
    before it deletes. A restore first stores the object of its generation, and then chooses the cut that it
    restores. Therefore the chosen cut refers to no object that a node of the old cluster has deleted. An
    upload relies on a check that is at most ``lease_s`` seconds old when the upload is complete. A restore
    waits for this time before it lists the objects, so its list has all objects whose uploads have succeeded.
    Shortly before the check becomes too old, an upload begins the next check and does not wait for the
    result. All uploads use the same check.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        generation: Callable[[], int],
        changes: Callable[[], float],
        fail: Callable[[str], None],
        lease_s: float,
    ) -> None:
        """``generation`` is the generation in this node's metadata. ``changes`` returns the number of
        requests with which this node has changed the store. ``fail`` stops the node. Its argument is the
        reason."""
        self._storage = storage
        self._generation = generation
        self._changes = changes
        self._fail = fail
        self._lease_s = lease_s
        self._changes_seen = -1.0
        self._looked_s = float("-inf")
        """The time at which a check began: the last check that found no later generation."""
        self._looking: asyncio.Task[None] | None = None
        """The check in progress, which uploads share."""
        self.has_metadata = False
        """Whether the node's metadata are complete. Incomplete metadata may show an earlier generation."""

    async def run_once(self) -> None:
        """Check for a newer generation if this node has changed the store since the last check. An idle node
        therefore sends no requests. Raises ``StorageError``."""
        changes = self._changes()
        if changes == self._changes_seen:
            return
        await self._check_generation()
        self._changes_seen = changes

    async def before_upload(self) -> None:
        age_s = asyncio.get_running_loop().time() - self._looked_s
        if age_s > self._lease_s * _EARLY:
            await self._renew(age_s)

    async def after_upload(self) -> None:
        age_s = asyncio.get_running_loop().time() - self._looked_s
        if age_s > self._lease_s:
            await self._renew(age_s)

    async def _renew(self, age_s: float) -> None:
        """Begin a check if none is in progress. Wait for its result if the last check is too old."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(
                self._check_generation(), name="look at the generation"
            )
            self._looking.add_done_callback(self._looked)
        if age_s > self._lease_s:
            # Uploads share the check. If one upload is cancelled, the check must continue for the others.
            await asyncio.shield(self._looking)

    def _looked(self, looking: "asyncio.Task[None]") -> None:
        self._looking = None
        if not looking.cancelled() and (error := looking.exception()) is not None:
            # The next upload that needs a check starts a new check.
            logger.debug("no look at the generation: %s", error)

    async def before_delete(self) -> None:
        await self._check_generation()

    async def _check_generation(self) -> None:
        """Raises ``StorageError`` when the store has a later generation, when it lacks the own generation, or
        when the store fails."""
        began_s = asyncio.get_running_loop().time()
        latest, own = await latest_generation(self._storage), self._generation()
        if latest == own:
            self._looked_s = began_s
            return
        self._looked_s = float("-inf")
        if latest < own:
            # The nodes of another cluster with the same id may use this store, for example if this cluster
            # was restored from a copy of it.
            raise StorageError(
                f"this cluster is of generation {own}, and the object store is of generation {latest}: it is"
                " not the store of the restored cluster, so this node neither writes nor deletes there."
                " Correct diskless.storage.url. To use this store nevertheless, put an empty object"
                f" {generation_key(own)} into it",
                transient=False,
            )
        reason = (
            f"the cluster was restored from its object store (generation {latest}), and this node is of"
            f" generation {own}: it may neither write nor delete there. Stop all nodes of the old"
            " cluster; see 'Restore a cluster' in the documentation."
        )
        if self.has_metadata:
            self._fail(reason)
        raise StorageError(reason, transient=not self.has_metadata)
