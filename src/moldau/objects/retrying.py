"""Repeats requests after transient errors. The retries must not overload a store that has problems.

An error is retried if its field ``StorageError.transient`` is true. ``obstore_errors.py`` sets this field for
the errors of real stores.

There is exponential backoff with full jitter, a deadline for each operation, a time limit for each attempt,
and a retry budget that all operations share. When most requests to the store fail, the budget is soon used
up. Then no retries are made, and each operation fails at once with the last error.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from moldau.objects.fence import NoFence, StoreFence
from moldau.objects.health import StorageHealth
from moldau.objects.hedging import HedgeBudget, Patience, hedged
from moldau.objects.storage import (
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStorage,
    StorageError,
    StorageTimeoutError,
    fetch_once,
)
from moldau.runtime import Entropy
from moldau.runtime.buffers import Buffer

__all__ = ["RetryBudget", "RetryPolicy", "RetryingStorage"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Times in milliseconds. Retry n waits for a random part of ``first_backoff * 2**n``, at most the
    maximum.
    """

    first_backoff_ms: float = 50
    max_backoff_ms: float = 5_000
    attempt_timeout_ms: float = 15_000
    """Time limit of an attempt. S3's slowest answers to an 8 MiB PUT take seconds. After this time the
    connection is abandoned."""
    deadline_ms: float = 30_000
    """Deadline of an operation, including all its attempts. Every attempt ends before this deadline."""
    patience_min_ms: float = 0
    """Minimum duration after which a slow upload or fetch gets a second attempt in parallel (``hedging``).
    The duration must also be much longer than usual. The value 0 disables second attempts, for example if
    requests take minutes."""

    def backoff_ms(self, retry: int, entropy: Entropy) -> float:
        ceiling = min(self.max_backoff_ms, self.first_backoff_ms * 2.0 ** min(retry, 30))
        return entropy.uniform(0.0, ceiling)


class RetryBudget:
    """A budget of tokens. Each retry uses a token, and successes add tokens. In the long run there is at most
    one retry for ten successes."""

    def __init__(self, capacity: float = 50.0, earned_by_success: float = 0.1) -> None:
        self._capacity = capacity
        self._earned = earned_by_success
        self.tokens = capacity

    def succeeded(self) -> None:
        self.tokens = min(self._capacity, self.tokens + self._earned)

    def spend(self) -> bool:
        """Take a token for a retry. Returns False when there is no token."""
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


class RetryingStorage:
    """An :class:`ObjectStorage` around another store. Transient errors of the other store are retried."""

    def __init__(
        self,
        storage: ObjectStorage,
        entropy: Entropy,
        *,
        policy: RetryPolicy | None = None,
        budget: RetryBudget | None = None,
        health: StorageHealth | None = None,
        name: str = "",
    ) -> None:
        """``name`` is the store's name in the error of a failed check (its URL)."""
        self._name = name
        self.fence: StoreFence = NoFence()
        """The fence that is asked before each change of the store."""
        self._storage = storage
        self._entropy = entropy
        self._policy = policy or RetryPolicy()
        self.budget = budget or RetryBudget()
        self.health = health or StorageHealth()
        least_s = self._policy.patience_min_ms / 1000
        self._hedges = HedgeBudget()
        self._upload_patience = Patience(least_s) if least_s else None
        self._fetch_patience = Patience(least_s) if least_s else None

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        await self.fence.before_upload()
        await self._run(lambda: self._storage.upload(key, data, length), self._upload_patience)
        await self.fence.after_upload()

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        return await self._run(lambda: self._storage.fetch(key, offset, size), self._fetch_patience)

    async def fetch_once(self, key: str, offset: int, size: int) -> memoryview:
        return await self._run(lambda: fetch_once(self._storage, key, offset, size))

    async def delete(self, keys: Collection[str]) -> None:
        async def attempt() -> None:
            # The fence is asked before each attempt, because the cluster may be restored between two
            # attempts.
            await self.fence.before_delete()
            await self._storage.delete(keys)

        await self._run(attempt)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """After an error, the retry of the listing continues after the last key that was listed."""
        last_key = start_after
        retry = 0
        while True:
            try:
                async with aclosing(_pages(self._storage, prefix, last_key)) as pages:
                    while (page := await self._page(pages)) is not None:
                        self._succeeded()
                        retry = 0
                        if page:
                            last_key = page[-1].key
                            yield page
                return
            except StorageError as error:
                self._failed(error)
                wait_ms = self._policy.backoff_ms(retry, self._entropy)
                if not error.transient or retry >= LIST_RETRIES_MAX or not self.budget.spend():
                    raise
            retry += 1
            await asyncio.sleep(wait_ms / 1000)

    async def check(self) -> None:
        """Makes only one attempt, because a starting node must not wait long. When a node starts, errors are
        rarely transient.
        """
        try:
            async with asyncio.timeout(self._policy.attempt_timeout_ms / 1000):
                await self._storage.check()
        except TimeoutError as error:
            raise StorageTimeoutError(
                f"cannot use object storage {self._name}: no answer in time"
                " (if no credentials are configured, they are requested from the cloud's metadata service)"
            ) from error

    async def close(self) -> None:
        await self._storage.close()

    async def _run(self, attempt: Callable[[], Awaitable[T]], patience: Patience | None = None) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._policy.deadline_ms / 1000
        retry = 0
        while True:
            try:
                result = await self._attempt(attempt, deadline, patience)
            except StorageError as error:
                self._failed(error)
                wait_s = self._policy.backoff_ms(retry, self._entropy) / 1000
                if not error.transient or loop.time() + wait_s >= deadline or not self.budget.spend():
                    raise
            else:
                self._succeeded()
                return result
            retry += 1
            await asyncio.sleep(wait_s)

    async def _attempt(
        self, attempt: Callable[[], Awaitable[T]], deadline: float, patience: Patience | None
    ) -> T:
        limit = min(deadline, asyncio.get_running_loop().time() + self._policy.attempt_timeout_ms / 1000)
        try:
            if patience is not None:
                return await hedged(attempt, patience, self._hedges, limit)
            async with asyncio.timeout_at(limit):
                return await attempt()
        except TimeoutError as error:
            raise StorageTimeoutError("no answer in time") from error

    async def _page(self, pages: AsyncIterator[Sequence[ObjectInfo]]) -> Sequence[ObjectInfo] | None:
        try:
            async with asyncio.timeout(self._policy.attempt_timeout_ms / 1000):
                return await anext(pages, None)
        except TimeoutError as error:
            raise StorageTimeoutError("no answer in time") from error

    def _succeeded(self) -> None:
        self.budget.succeeded()
        self.health.succeeded()

    def _failed(self, error: StorageError) -> None:
        if isinstance(error, ObjectNotFoundError):
            self.health.succeeded()  # "Not found" is a valid answer of a store that works.
        else:
            self.health.failed(str(error), asyncio.get_running_loop().time() * 1000)


LIST_RETRIES_MAX = 8
"""Maximum number of consecutive retries of a listing without a new page."""


async def _pages(
    storage: ObjectStorage, prefix: str, start_after: str
) -> AsyncGenerator[Sequence[ObjectInfo], None]:
    async for page in storage.list(prefix, start_after=start_after):
        yield page
