"""The numbers of a broker's commits at one coordinator (see ``coordinators/diskless/state/commit_order.py``).
A caller waits here for a free number.
"""

import asyncio

from moldau.coordinators.diskless.calls import CommitPlace

NO_EPOCH = -1
_NOT_SENT = -1


class OpenCommits:
    """The commits of one queue whose outcome is not known yet, in the order of their files.

    All numbers belong to one epoch, which is the first known epoch. Without an epoch, commits have no
    numbers, and only one commit is open at a time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Number of commits that may be open, if they have numbers."""
        self._epoch = NO_EPOCH
        self._useless_epoch = NO_EPOCH
        """The epoch whose numbers the coordinator does not accept any more."""
        self._next = 0
        self._open: dict[int, int] = {}
        """The open numbers, each with the first open number at the time when it was last sent."""
        self._unheard = -1
        """The highest number of a closed commit that the coordinator perhaps has not received."""
        self._is_halted = False
        self._settled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    async def room(self, epoch: int) -> None:
        """Wait until another commit may be opened. ``epoch`` is the epoch of the broker's registration; -1 if
        that epoch is not known."""
        if self._epoch == NO_EPOCH:
            while self._open:
                await self.until_settled()
            if epoch > self._useless_epoch:
                self._epoch = epoch
        while len(self._open) >= (1 if self._epoch == NO_EPOCH else max(1, self.limit)):
            await self.until_settled()

    def open_next(self) -> int:
        """Open a commit after :meth:`room`, and return its number. The caller must send the commit, because
        later commits wait for it at the coordinator."""
        number = self._next
        self._next += 1
        self._open[number] = _NOT_SENT
        return number

    def place(self, number: int) -> CommitPlace | None:
        """Return the epoch and the number of an open commit, and the number of the first open commit. The
        caller sends the commit now. Without an epoch, return ``None``."""
        if self._epoch == NO_EPOCH:
            return None
        first = self._open[number] = next(iter(self._open))
        return CommitPlace(self._epoch, number, first)

    def is_first(self, number: int) -> bool:
        """Whether the commit with this number is the first open commit."""
        return next(iter(self._open)) == number

    def abandon_numbers(self) -> None:
        """Send commits without numbers from now on, one at a time. The coordinator expects a higher number
        than the numbers of this broker, so it would refuse further commits with numbers. When the broker has
        registered again and has a newer epoch, commits have numbers again.
        """
        self._useless_epoch = max(self._useless_epoch, self._epoch)
        self._epoch = NO_EPOCH

    def halt(self) -> None:
        """Record that an attempt has failed. Until the next outcome is known, only the first open commit may
        be sent."""
        self._is_halted = True

    async def until_sendable(self, number: int) -> None:
        """Wait until this commit may be sent. After a failure, and if commits have no numbers, only the first
        open commit may be sent.

        Without the wait after a failure, commits could block each other. Assume that two commits have failed,
        and that a third commit is sent before they are repeated. The third commit waits at the coordinator
        for the second commit. A connection returns its responses in order, so the response to the repeated
        first commit comes after the response to the third commit. But the second commit is repeated only
        after the response to the first. Therefore no commit would get a response.
        """
        while (self._is_halted or self._epoch == NO_EPOCH) and not self.is_first(number):
            await self.until_settled()

    def settle(self, number: int, *, is_received: bool = True) -> None:
        """Close a commit. Its outcome is known, or it will never be known.

        ``is_received`` is False if the coordinator perhaps does not know that the number was used.
        """
        was_first = self.is_first(number)
        del self._open[number]
        if not is_received:
            self._unheard = max(self._unheard, number)
        if was_first:
            self._is_halted = False
        settled, self._settled = self._settled, asyncio.Event()
        settled.set()

    def blocked(self) -> int | None:
        """The first open commit, if it may wait at the coordinator for a number that has ended. This commit
        must be sent again with a new :class:`CommitPlace`, which shows that the earlier numbers have ended.
        """
        first = next(iter(self._open), None)
        if first is None or first < self._unheard or not _NOT_SENT < self._open[first] <= self._unheard:
            return None
        return first

    async def until_settled(self) -> None:
        """Wait until the next commit is closed."""
        await self._settled.wait()
