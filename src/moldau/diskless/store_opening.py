"""Opens the object store of a broker for its cluster: the broker checks that it can use the store, leaves the
claim of its cluster there, and remembers that it has used the store.

A broker that has used the store before also starts while the store is temporarily unavailable, because
metadata, groups and cached records do not need the store. The store is then opened later.
"""

import logging
from collections.abc import Callable
from typing import Final

from moldau.diskless.known_store import KnownStore
from moldau.diskless.store_claim import ForeignStoreError, StoreClaim
from moldau.objects import ObjectStorage, StorageError
from moldau.runtime import UnexpectedErrors
from moldau.runtime.repeating import Repeating

_logger: Final = logging.getLogger(__name__)
_FIRST_MS: Final = 1_000
_REPEAT_MS: Final = 30_000


class StoreOpening:
    """Opens a store. ``name`` is the store's name in messages (its URL)."""

    def __init__(
        self,
        storage: ObjectStorage,
        claim: StoreClaim,
        known: KnownStore,
        name: str,
        unexpected: UnexpectedErrors,
        fail: Callable[[str], None],
    ) -> None:
        """``fail`` stops the broker, with a reason."""
        self._storage = storage
        self._claim = claim
        self._known = known
        self._name = name
        self._was_used_before = False
        self._is_decided = False
        self._fail = fail
        self._repeating = Repeating(
            "opening the object store",
            self._open_later,
            _REPEAT_MS,
            initial_delay_ms=_FIRST_MS,
            unexpected=unexpected,
        )
        self.notice: str | None = None
        """A fault of the store's content that was found, in a sentence."""

    async def begin(self, *, had_coordinators: bool) -> None:
        """Open the store, or begin to try again later. Raises ``StorageError``, with a sentence for the
        operator, if the store cannot be used.

        The broker has used the store before if it remembers this. If it remembers nothing, it must have had
        replicas of coordinators (``had_coordinators``).
        """
        self._was_used_before = self._known.is_known(otherwise=had_coordinators)
        try:
            await self._open()
        except StorageError as error:
            if not (self._was_used_before and error.transient):
                raise
            _logger.warning("%s; the broker starts without the object store", error)
            self._repeating.start()

    async def end(self) -> None:
        """Stop trying to open the store."""
        await self._repeating.stop()

    async def _open_later(self) -> None:
        if self._is_decided:
            return
        try:
            await self._open()
        except ForeignStoreError as error:
            # The broker would not have started if the store had answered at the start.
            self._is_decided = True
            self._fail(str(error))

    async def _open(self) -> None:
        await self._storage.check()
        await self._claim.ensure()
        self._is_decided = True
        self._known.remember()
        if self._was_used_before and self._claim.was_missing:
            self.notice = (
                f"the cluster had no claim in {self._name} when this broker opened it, though it has stored"
                " objects before: the store was emptied, or diskless.storage.url names another place"
            )
            _logger.warning("%s; records in missing objects cannot be read", self.notice)
