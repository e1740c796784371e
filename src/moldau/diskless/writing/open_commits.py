"""The numbers of a broker's commits at one coordinator (see ``coordinators/diskless/state/commit_order.py``).
Pure, except for waiting.
"""

import asyncio

from moldau.coordinators.diskless.calls import CommitPlace

NO_EPOCH = -1


class OpenCommits:
    """The commits of one queue with an unknown outcome, in the order of their files.

    All numbers belong to one epoch, which is the first known epoch. Without an epoch commits have no place,
    and only one commit is open at a time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Number of commits that may be open, if they have numbers."""
        self._epoch = NO_EPOCH
        self._next = 0
        self._open: dict[int, None] = {}
        self._settled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    async def room(self, epoch: int) -> None:
        """Wait until another commit may be opened. ``epoch`` is the epoch of the broker's registration; -1 if
        it is not known."""
        if self._epoch == NO_EPOCH:
            while self._open:
                await self.until_settled()
            self._epoch = epoch
        while len(self._open) >= (1 if self._epoch == NO_EPOCH else max(1, self.limit)):
            await self.until_settled()

    def take(self) -> int:
        """Open a commit after :meth:`room`, and return its number. The caller must send it, because later
        commits wait for it at the coordinator."""
        number = self._next
        self._next += 1
        self._open[number] = None
        return number

    def place(self, number: int) -> CommitPlace | None:
        """The current place of an open commit."""
        if self._epoch == NO_EPOCH:
            return None
        return CommitPlace(self._epoch, number, next(iter(self._open)))

    def is_first(self, number: int) -> bool:
        """Whether no earlier commit is open."""
        return next(iter(self._open)) == number

    def settle(self, number: int) -> None:
        """Close a commit. Its outcome is known, or can never become known."""
        del self._open[number]
        settled, self._settled = self._settled, asyncio.Event()
        settled.set()

    async def until_settled(self) -> None:
        """Wait until the next commit is closed."""
        await self._settled.wait()
