"""Records which cluster owns a location (a bucket with a prefix, or a folder) in an object store.

The orphan scan deletes objects that no coordinator of its cluster knows. In a shared location, two clusters
would therefore delete each other's records. So a cluster first stores an object in the location. The object's
name contains the id of the cluster. If this location contains the object of another cluster, the cluster does
not start and does not scan. No conditional request is needed. When two clusters start at the same time, each
of them writes before it checks again. At least one of them therefore finds the other cluster's object.
"""

from typing import Final

from moldau.objects import ObjectStorage, StorageError

__all__ = ["CLAIMS_FOLDER", "ForeignStoreError", "StoreClaim", "refuse_claimed"]

CLAIMS_FOLDER: Final = ".moldau/clusters/"


class ForeignStoreError(StorageError):
    """The store belongs to another cluster, which would delete the objects of this cluster."""


class StoreClaim:
    """A cluster's claim to a store. ``name`` is the store's name in errors (its URL).

    ``source`` is the file from which the cluster id comes.
    """

    def __init__(
        self, storage: ObjectStorage, cluster_id: str, name: str, *, source: str = "meta.properties"
    ) -> None:
        self._storage = storage
        self._cluster_id = cluster_id
        self._name = name
        self._source = source
        self.was_missing = False
        """Whether the claim was not in the store when :meth:`ensure` first looked for it."""

    async def ensure(self) -> bool:
        """Wait until it is certain that the store belongs only to this cluster. Returns whether the claim of
        this cluster existed before the call.

        Raises :class:`ForeignStoreError`, which is permanent and names the other cluster. Raises a transient
        ``StorageError`` when the store does not respond.
        """
        own = f"{CLAIMS_FOLDER}{self._cluster_id}"
        if own in await self._claims(own):
            return True
        self.was_missing = True
        content = self._cluster_id.encode()
        await self._storage.upload(own, content, len(content))
        try:
            await self._claims(own)
        except StorageError as error:
            if not error.transient:
                await self._storage.delete([own])
            raise
        return False

    async def check(self) -> None:
        """Check that the store has this cluster's claim. This call writes nothing.

        Raises the same errors as :meth:`ensure`. Raises a permanent ``StorageError`` when there is no claim.
        """
        own = f"{CLAIMS_FOLDER}{self._cluster_id}"
        if own not in await self._claims(own):
            raise StorageError(
                f"{self._name} is not where cluster {self._cluster_id} stores its objects: no broker of it"
                f" has left {own} there",
                transient=False,
            )

    async def refuse_foreign(self) -> None:
        """Check that no other cluster has a claim. This call writes nothing. Raises the same errors as
        :meth:`ensure`.
        """
        await self._claims(f"{CLAIMS_FOLDER}{self._cluster_id}")

    async def _claims(self, own: str) -> set[str]:
        keys = await _claims_in(self._storage)
        others = sorted(keys - {own})
        if others:
            other = others[0].removeprefix(CLAIMS_FOLDER)
            raise ForeignStoreError(
                f"{self._name} belongs to cluster {other}, and this is cluster {self._cluster_id}: give each"
                f" a folder of its own. If this node is of cluster {other} and {self._source} was lost or"
                f" damaged, put that back with cluster.id={other}; see 'A folder without meta.properties' in"
                " docs/operations.md",
                transient=False,
            )
        return keys


async def refuse_claimed(storage: ObjectStorage, name: str, folder: str) -> None:
    """Check that no cluster has a claim, so that a new cluster may use the store. This call writes nothing.

    ``folder`` is the new node's folder. Raises a permanent ``StorageError`` if there is a claim, and a
    transient ``StorageError`` when the store does not respond.
    """
    claims = sorted(await _claims_in(storage))
    if claims:
        owner = claims[0].removeprefix(CLAIMS_FOLDER)
        raise StorageError(
            f"{name} belongs to cluster {owner}, and {folder} is not formatted. Nothing was written. Give a"
            f" new cluster a place of its own. If {folder} should hold a node of cluster {owner}, restore the"
            " folder, or see docs/howto/backup.md for a restore from the store alone",
            transient=False,
        )


async def _claims_in(storage: ObjectStorage) -> set[str]:
    return {info.key async for page in storage.list(CLAIMS_FOLDER) for info in page}
