"""Fetch requests of consumers that wait for more bytes. Equal requests wait as one group.

Very many consumers may wait for the same records, and their requests are then often equal byte for byte.
The first of them reads the partitions and becomes a group. If it has found no bytes, the next equal request
joins the group without a read, until an append wakes the group. The group then reads once, in the next
iteration of the event loop, and all its members get the same bytes. Each member has its own deadline.
"""

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from moldau.network.context import Buffers
from moldau.protocol.partitions import PartitionKey
from moldau.replication.waiters import Waiter, WaitingRoom
from moldau.runtime import UnexpectedErrors

F = TypeVar("F")

ANSWERS_A_TURN: Final = 128
"""Number of requests that are answered in one iteration of the event loop. A read of a partition counts as
one request."""


class FetchQuestion(Protocol[F]):
    """The partitions and limits of equal requests. ``F`` is the result of one pass over the partitions."""

    @property
    def max_wait_ms(self) -> int: ...

    @property
    def keys(self) -> Sequence[PartitionKey]:
        """The partitions whose changes end a wait, after :meth:`read`."""
        ...

    @property
    def topics(self) -> Iterable[str]:
        """The names of the topics that a member must be allowed to read."""
        ...

    def read(self) -> "F | asyncio.Future[F]":
        """Read the partitions. The result is a future if a read needs a disk or a remote store."""
        ...

    def is_enough(self, found: F) -> bool:
        """Whether the requests are answered with this result, and do not wait."""
        ...

    def size_bytes(self, found: F) -> int:
        """Size of the records that were found."""
        ...

    def body(self, found: F) -> Buffers:
        """The response to each of the requests."""
        ...

    def count_again(self, found: F, times: int) -> None:
        """Count the result ``times`` times more, because other members get it, too."""
        ...

    def failure(self, error: BaseException) -> Buffers:
        """The response after an unexpected error of another method."""
        ...


class WaitingFetches:
    """The waiting requests of one version of Fetch."""

    def __init__(self, arrivals: WaitingRoom[PartitionKey], unexpected: UnexpectedErrors) -> None:
        self.arrivals = arrivals
        self.unexpected = unexpected
        self._joinable: dict[Hashable, FetchGroup[Any]] = {}
        self._due: deque[FetchGroup[Any]] = deque()
        """The groups that must read or send answers."""

    def find(self, key: Hashable) -> "FetchGroup[Any] | None":
        """A group that a request with this key may join."""
        group = self._joinable.get(key)
        if group is None or self.arrivals.loop.time() > group.joinable_until:
            return None
        return group

    def begin(
        self, question: FetchQuestion[F], reading: "F | asyncio.Future[F]", key: Hashable | None
    ) -> "asyncio.Future[Buffers]":
        """Let a request wait that has found too little. Other requests may join it if it has a key."""
        group = FetchGroup(self, question, key)
        answer = group.join()
        group.wait(reading)
        return answer

    def admit(self, group: "FetchGroup[Any]") -> None:
        """Let requests join a group from now on."""
        if group.key is not None:
            self._joinable[group.key] = group

    def forget(self, group: "FetchGroup[Any]") -> None:
        """Let no more requests join a group."""
        if group.key is not None and self._joinable.get(group.key) is group:
            del self._joinable[group.key]

    def serve_soon(self, group: "FetchGroup[Any]") -> None:
        """Call :meth:`FetchGroup.serve` in the next iteration of the event loop."""
        self._due.append(group)
        if len(self._due) == 1:
            self.arrivals.loop.call_soon(self._serve_some)

    def _serve_some(self) -> None:
        left = ANSWERS_A_TURN
        while self._due and left > 0:
            group = self._due[0]
            with self.unexpected.contained("answering waiting fetches", group.fail):
                left -= group.serve(left)
            if group.is_served:
                self._due.popleft()
        if self._due:
            self.arrivals.loop.call_soon(self._serve_some)


class _WaitingRequest:
    """One member of a group."""

    __slots__ = ("answer", "due", "group", "is_over")

    def __init__(self, group: "FetchGroup[Any]", answer: "asyncio.Future[Buffers]") -> None:
        self.group = group
        self.answer = answer
        self.due = 0.0
        self.is_over = False
        """Whether the deadline has passed."""

    def expire(self) -> None:
        self.is_over = True
        self.group.expired(self)

    def reply(self, body: Buffers) -> None:
        if not self.answer.done():
            self.answer.set_result(body)


class FetchGroup(Waiter[PartitionKey], Generic[F]):
    """Equal requests that wait together."""

    __slots__ = (
        *("_body", "_empty_body", "_found", "_is_reading", "_is_woken", "_members", "_owner", "_question"),
        *("joinable_until", "key"),
    )

    def __init__(self, owner: WaitingFetches, question: FetchQuestion[F], key: Hashable | None) -> None:
        super().__init__()
        self._owner = owner
        self._question = question
        self.key = key
        """The key of requests that may join. With None, no request may join."""
        self.joinable_until = 0.0
        """The last read plus the maximum wait. A group that nothing wakes reads nothing. Therefore it gets no
        new members after this time, and the next request reads again."""
        self._members: dict[_WaitingRequest, None] = {}
        self._found: F | None = None
        """The result of the last read, which was not enough."""
        self._is_reading = False
        """Whether a read from a disk or a remote store is in progress."""
        self._is_woken = False
        """Whether the wait has ended, and another read is necessary."""
        self._body: Buffers | None = None
        """The response, while not all members have it."""
        self._empty_body: Buffers | None = None
        """The response to members whose deadlines pass."""

    @property
    def is_served(self) -> bool:
        """Whether no more member has to be answered soon."""
        return self._body is None or not self._members

    @property
    def topics(self) -> Iterable[str]:
        return self._question.topics

    def join(self) -> "asyncio.Future[Buffers]":
        """Let another request wait with this group. Returns the future of its response."""
        arrivals = self._owner.arrivals
        member = _WaitingRequest(self, arrivals.loop.create_future())
        self._members[member] = None
        member.due = arrivals.deadlines.add(arrivals.due(self._question.max_wait_ms / 1000), member)
        return member.answer

    def wait(self, reading: "F | asyncio.Future[F]") -> None:
        """Wait for a change of a partition. The wait begins before a slower read ends, so that it misses no
        append."""
        self._is_woken = False
        self._is_reading = isinstance(reading, asyncio.Future)
        self._owner.arrivals.admit(self, self._question.keys, None)
        if isinstance(reading, asyncio.Future):
            self._owner.forget(self)
            reading.add_done_callback(self._read_is_done)
        else:
            self._note_found(reading)

    def ended(self, woken: bool) -> None:
        if woken:
            self._is_woken = True
            if not self._is_reading:
                self._owner.serve_soon(self)

    def _note_found(self, found: F) -> None:
        """Note the result of a read that was not enough."""
        self._found, self._empty_body = found, None
        owner = self._owner
        # The position of a request that has found bytes may be deleted, which wakes nothing.
        if not self._is_woken and not self._question.size_bytes(found):
            self.joinable_until = owner.arrivals.loop.time() + self._question.max_wait_ms / 1000
            owner.admit(self)
        else:
            owner.forget(self)
        for member in [each for each in self._members if each.is_over]:
            self._reply_with_found(member)
        if not self._members:
            self._end()

    def _read_is_done(self, read: "asyncio.Future[F]") -> None:
        self._is_reading = False
        if read.cancelled():
            self._end()
            for member in self._remove(len(self._members)):
                member.answer.cancel()
            return
        error = read.exception()
        if error is not None:
            self._answer(self._question.failure(error))
            self._owner.serve_soon(self)
            return
        found = read.result()
        if self._question.is_enough(found):
            self._answer_with(found)
            self._owner.serve_soon(self)
        else:
            self._note_found(found)
            if self._is_woken and self._members:
                self._owner.serve_soon(self)

    def serve(self, count_max: int) -> int:
        """Read for a woken group, and answer at most ``count_max`` members. The next calls answer the others.
        Returns the number of members that were answered and partitions that were read."""
        if self._body is not None:
            return self._send(count_max)
        if not self._members:
            return 0
        try:
            reading = self._question.read()
            is_enough = not isinstance(reading, asyncio.Future) and self._question.is_enough(reading)
        except Exception as error:
            self._answer(self._question.failure(error))
            return self._send(count_max)
        cost = len(self._question.keys)
        if is_enough and not isinstance(reading, asyncio.Future):
            self._answer_with(reading)
            return cost + self._send(count_max)
        self.wait(reading)
        return cost

    def fail(self, error: Exception) -> None:
        """Let all members get an error, because :meth:`serve` has failed."""
        self._answer(self._question.failure(error))

    def expired(self, member: _WaitingRequest) -> None:
        """Answer a member whose deadline has passed."""
        if self._body is not None:
            del self._members[member]
            member.reply(self._body)
            return
        if self._is_reading or self._is_woken:
            return  # It is answered after the read.
        self._reply_with_found(member)
        if not self._members:
            self._end()

    def _reply_with_found(self, member: _WaitingRequest) -> None:
        del self._members[member]
        assert self._found is not None
        if self._empty_body is None:
            self._empty_body = self._body_of(self._found)
        else:
            self._count_again(self._found, 1)
        member.reply(self._empty_body)

    def _answer_with(self, found: F) -> None:
        self._answer(self._body_of(found))
        self._count_again(found, len(self._members) - 1)

    def _count_again(self, found: F, times: int) -> None:
        if times > 0 and self._question.size_bytes(found):
            with self._owner.unexpected.contained("counting the bytes of fetches"):
                self._question.count_again(found, times)

    def _body_of(self, found: F) -> Buffers:
        try:
            return self._question.body(found)
        except Exception as error:
            return self._question.failure(error)

    def _answer(self, body: Buffers) -> None:
        """From now on, this is the response to all members."""
        self._end()
        self._body = body

    def _send(self, count_max: int) -> int:
        assert self._body is not None
        members = self._remove(count_max)
        for member in members:
            member.reply(self._body)
        return len(members)

    def _remove(self, count: int) -> list[_WaitingRequest]:
        members = list(islice(self._members, count))
        deadlines = self._owner.arrivals.deadlines
        for member in members:
            del self._members[member]
            if not member.is_over:
                deadlines.remove(member.due, member)
        return members

    def _end(self) -> None:
        self.finish(False)
        self._owner.forget(self)
