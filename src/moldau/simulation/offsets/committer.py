"""A consumer that is not a member of its group. It commits offsets, fetches them, and checks the fetched
values.

An acknowledged commit must never be lost, and must never be replaced by an older commit. If a commit gets no
response, it may still take effect later, until no connection and no paused node can contain its request any
more.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import RETRIABLE, Bootstrap, RetryError
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.history import History
from moldau.simulation.offsets.group_client import GroupClient

OFFSET_COMMIT_VERSION: Final = 8
OFFSET_FETCH_VERSION: Final = 7
UNDER_WAY_S: Final = 60.0
"""A time that is longer than a paused node or a broken link can delay a request."""
_FETCH_CHANCE: Final = 0.3


@dataclass(slots=True)
class Commits:
    """The commits of a group to a set of partitions. This object knows which values a fetch may return."""

    settled: int = -1
    """The last value that is certainly committed; -1 if there is no such value."""
    pending: dict[int, float] = field(default_factory=dict)
    """Values of commits that got no response. Each value has the time when it was sent."""

    def sent(self, value: int, now_s: float) -> None:
        """Record that a commit is sent."""
        self.pending[value] = now_s

    def acknowledged(self, value: int, now_s: float) -> None:
        """Record that the commit took effect. Recent commits that got no response may still take effect
        later."""
        del self.pending[value]
        self.fetched(value, now_s)

    def allowed(self) -> set[int]:
        """The values that a fetch may return."""
        return {*self.pending, self.settled}

    def fetched(self, value: int, now_s: float) -> None:
        """Record that ``value`` was the committed value at ``now_s``. Commits that got no response can still
        take effect later, if they were sent less than :data:`UNDER_WAY_S` before ``now_s``."""
        self.settled = value
        self.pending = self._recent(now_s)

    def _recent(self, now_s: float) -> dict[int, float]:
        return {value: sent_s for value, sent_s in self.pending.items() if now_s - sent_s < UNDER_WAY_S}


class OffsetCommitter(GroupClient):
    """Commits one value at a time to all of its partitions. The metadata string of each commit contains the
    same value.

    Values increase and decrease, as after a reset, so an older value can be larger than a newer value.
    """

    def __init__(
        self,
        name: str,
        bootstrap: Bootstrap,
        history: History,
        chance: random.Random,
        topic: str,
        partition_count: int,
    ) -> None:
        super().__init__(name, bootstrap, history, chance, group_id=name)
        self._topic = topic
        self._indexes = range(partition_count)
        self._commits = Commits()
        self._number = 0

    async def run(self, commit_count: int, *, pause_s: float) -> None:
        """Commit ``commit_count`` times, and wait until the last commit is acknowledged."""
        last = self._number + commit_count
        while self._number < last:
            self._number += 1
            # The values are unique, and not in order.
            value = self.chance.randrange(1_000) * 1_000_000 + self._number
            await self._commit_until_acknowledged(value)
            if self.chance.random() < _FETCH_CHANCE:
                await self.verify()
            await asyncio.sleep(self.chance.expovariate(1.0) * pause_s)
        self.disconnect()

    async def verify(self) -> None:
        """Fetch until there is a response, and check the response."""
        while True:
            try:
                await self._fetch(await self.coordinator())
                return
            except (OSError, RetryError):
                self.disconnect()
                await self.pause()

    async def _commit_until_acknowledged(self, value: int) -> None:
        while True:
            try:
                await self._commit(await self.coordinator(), value)
                return
            except (OSError, RetryError):
                self.disconnect()
                await self.pause()
                if self.chance.random() < _FETCH_CHANCE:
                    await self.verify()

    async def _commit(self, connection: RpcConnection, value: int) -> None:
        rows = [
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=value, committed_metadata=str(value)
            )
            for index in self._indexes
        ]
        request = OffsetCommitRequest(
            group_id=self.name, topics=[OffsetCommitRequestTopic(name=self._topic, partitions=rows)]
        )
        self._commits.sent(value, self.history.now_s())
        response = await connection.request(ApiKey.OFFSET_COMMIT, OFFSET_COMMIT_VERSION, request)
        codes = {row.error_code for topic in response.topics for row in topic.partitions}
        if codes == {ErrorCode.none}:
            self._commits.acknowledged(value, self.history.now_s())
            self.history.note(f"{self.name} committed {value}")
            return
        names = ", ".join(sorted(code.name for code in codes))
        if not codes <= RETRIABLE:
            self.history.violate(f"{self.name}: OffsetCommit: {names}")
        raise RetryError(names)

    async def _fetch(self, connection: RpcConnection) -> None:
        topic = OffsetFetchRequestTopic(name=self._topic, partition_indexes=list(self._indexes))
        request = OffsetFetchRequest(group_id=self.name, topics=[topic], require_stable=True)
        response = await connection.request(ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION, request)
        if response.error_code is not ErrorCode.none:
            raise RetryError(response.error_code.name)
        rows = list(response.topics[0].partitions)
        for row in rows:
            if row.error_code is not ErrorCode.none:
                raise RetryError(row.error_code.name)
        self._check_committed(rows)

    def _check_committed(self, rows: list[Any]) -> None:
        now_s = self.history.now_s()
        found = {(row.committed_offset, row.metadata) for row in rows}
        allowed = self._commits.allowed()
        value = rows[0].committed_offset
        if len(found) > 1:
            self.history.violate(f"{self.name}: one commit has taken effect in part: {sorted(found)}")
        elif value not in allowed:
            self.history.violate(
                f"{self.name}: offset {value} is committed, where {self._commits.settled} was acknowledged"
            )
        elif value >= 0 and rows[0].metadata != str(value):
            self.history.violate(f"{self.name}: offset {value} has the metadata {rows[0].metadata!r}")
        else:
            self._commits.fetched(value, now_s)
