"""During a story with several nodes, checks that the high watermarks of replicated partitions never go
back."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from moldau.protocol.partitions import TopicPartition
from moldau.replication.classic_partition import ClassicPartition
from moldau.simulation.cluster.replica_agreement import WatermarkMonotonicity
from moldau.simulation.history import History

_LOOK_EVERY_S: Final = 0.05
"""Interval, in virtual time, at which newly opened replicas are found."""

Replicas = Callable[[TopicPartition], Iterator[tuple[int, ClassicPartition]]]
"""The replicas of a partition on the running nodes, with the ids of these nodes."""


class WatermarkWatch:
    """Has one checker for each partition. The checker is called at every move of a watermark. A replica that
    is opened again counts as a new replica."""

    def __init__(self, partitions: Iterable[TopicPartition], replicas: Replicas, history: History) -> None:
        self._replicas = replicas
        self._history = history
        self._checkers = {partition: WatermarkMonotonicity(history) for partition in partitions}
        self._followed: dict[ClassicPartition, str] = {}
        """All replicas that were opened so far, with the names under which they are checked."""
        self._task = asyncio.create_task(self._watch())

    def end(self) -> None:
        """End the checks. If an error ended them earlier, this is a violation, because nothing was checked
        after the error."""
        if self._task.done() and self._task.exception() is not None:
            self._history.violate(f"the watch of the watermarks failed: {self._task.exception()!r}")
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            for partition, checker in self._checkers.items():
                for node_id, replica in self._replicas(partition):
                    if replica not in self._followed:
                        name = f"replica {len(self._followed)} of {partition}, on node-{node_id}"
                        self._followed[replica] = name
                        replica.watermarks.follow(partial(_moved, checker, name, replica))
                    _moved(checker, self._followed[replica], replica, replica.high_watermark)
            await asyncio.sleep(_LOOK_EVERY_S)


def _moved(checker: WatermarkMonotonicity, name: str, replica: ClassicPartition, watermark: int) -> None:
    checker.seen(name, watermark)
    # A new leader may begin with an older watermark. The fetches of its followers raise this watermark before
    # the leader commits a record of its own.
    epoch = replica.leader_epoch
    if replica.is_leader and watermark and replica.log.epoch_for_offset(watermark - 1) == epoch:
        checker.answered(epoch, watermark)
