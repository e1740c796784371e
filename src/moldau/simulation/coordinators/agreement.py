"""Compares the states of coordinators with the states that follow from their logs alone. It does this for one
process of a node after another.

Each coordinator has a reference: an empty shard that replays the committed log from offset 0. The reference
continues across all processes of the hosts, and does not use the coordinator's store and snapshots. Whenever
the leader's shard, its log and the reference are at the same offset, the states of the shard and of the
reference are compared. The states are also reported to :class:`StateAgreement`, which compares them with the
states of earlier terms at this offset.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from moldau.coordinators.loader import ShardLoader
from moldau.coordinators.log import LogUpTo, SnapshottedCoordinatorLog
from moldau.coordinators.shard import CanonicalState
from moldau.coordinators.shard_host import HostState, ShardHost
from moldau.coordinators.transactions.shard import TransactionShard
from moldau.runtime import KafkaError
from moldau.simulation.cluster.replica_agreement import StateAgreement
from moldau.simulation.history import History
from moldau.simulation.world.host import Host
from moldau.storage.snapshots.replicated_log import LogPosition

if TYPE_CHECKING:
    from moldau.server.coordinators.registry import CoordinatorRegistry

_LOOK_EVERY_S: Final = 0.02
"""Interval of the checks, in virtual time."""
_LOOKS_MAX: Final = 1_000
"""Maximum number of check intervals for which the deletion of records before a snapshot waits. On a disk that
sometimes fails, some checks fail."""


class AgreementTally:
    """Counts the comparisons. With these numbers, a test can make sure that something was compared."""

    def __init__(self) -> None:
        self.terms = 0
        """Number of loads of coordinators after which the state was compared."""
        self.states = 0
        """Number of states that were compared."""
        self.generations = 0
        """Sum, over all compared states, of the number of complete generations of groups in the state."""
        self.gaps = 0
        """Number of logs that a snapshot had shortened before the reference had replayed them. The check of
        such a log ends.

        During a check of a term, the snapshots of the term wait for the reference, so they cannot shorten the
        log too early.
        """


class CoordinatorAgreement:
    """Checks one coordinator over all processes of the hosts."""

    def __init__(self, name: str, history: History, tally: AgreementTally) -> None:
        self._name = name
        self._history = history
        self._tally = tally
        self._states = StateAgreement(history)
        self._reference: Any = None
        self._end_offset = 0
        """The offset after the last record that the reference has replayed."""
        self._seen: tuple[str, int, int, int] | None = None
        self._newest_epoch = -1
        self._is_over = False
        self._watched: object = None
        """The log whose snapshots wait until the reference has replayed the records before them."""

    async def check(self, life: str, host: ShardHost[Any, Any]) -> None:
        """Replay committed records. If the coordinator is loaded and has not decided on later records,
        compare the states."""
        log = host.term.log
        if host.term.epoch < self._newest_epoch:
            return  # another node leads now, but this node does not know it yet
        self._newest_epoch = host.term.epoch
        self._keep_until_replayed(host)
        if self._is_over or not await self._replay(host, log.high_watermark):
            return
        offset = host.end_offset
        if host.state is HostState.ACTIVE and offset < self._end_offset:
            self._violate(f"is at {offset} in life {life}, where all below {self._end_offset} was committed")
            return
        seen = (life, host.term.epoch, host.loads, offset)
        is_settled = offset == log.log_end_offset == self._end_offset
        if host.state is not HostState.ACTIVE or not is_settled or seen == self._seen:
            return
        is_new_term = self._seen is None or self._seen[:3] != seen[:3]
        self._seen = seen
        self._tally.terms += is_new_term
        self._tally.states += 1
        led, expected = host.shard.canonical(), self._reference.canonical()
        found = differences(led, expected)
        self._tally.generations += len(led.named)
        if found:
            self._violate(f"differs in life {life} at {offset} from its log: {found}")
            return
        self._states.reached(f"the log of {self._name}", offset, expected.parts)
        self._states.reached(f"{self._name} in life {life}, load {host.loads}", offset, led.parts)

    def _keep_until_replayed(self, host: ShardHost[Any, Any]) -> None:
        """Make snapshots of this term wait. Otherwise they could remove records that the reference has not
        replayed yet."""
        log: Any = host.term.log
        if log is self._watched or not isinstance(log, SnapshottedCoordinatorLog):
            return
        self._watched, delete = log, log.delete_before_snapshot

        async def delete_when_replayed(snapshot_id: LogPosition) -> bool:
            for _ in range(_LOOKS_MAX):
                if self._is_over or self._end_offset >= snapshot_id.offset:
                    break
                await asyncio.sleep(_LOOK_EVERY_S)  # the next check will replay the remaining records
            return await delete(snapshot_id)

        setattr(log, "delete_before_snapshot", delete_when_replayed)  # noqa: B010 (a method of one object)

    async def _replay(self, host: ShardHost[Any, Any], end_offset: int) -> bool:
        """Replay the log up to ``end_offset``. Returns false when the log cannot be read now, or cannot be
        read any more."""
        if end_offset <= self._end_offset:
            return self._reference is not None
        if host.term.log.log_start_offset > self._end_offset:
            self._tally.gaps += 1
            self._is_over = True
            return False
        if self._reference is None:
            self._reference = _without_effects(host.kind.new_shard(host.term.partition))

        def replayed(offset: int, _record: Any) -> None:
            self._end_offset = offset + 1

        loader: ShardLoader[Any] = ShardLoader(
            self._reference,
            host.kind.codec,
            LogUpTo(host.term.log, end_offset),
            replayed,
            name=f"the reference of {self._name}",
            policy=host.kind.policy,
        )
        try:
            self._end_offset = await loader.run(self._end_offset)
        except (OSError, KafkaError):
            return False  # in some scenarios the disk sometimes fails
        return True

    def _violate(self, problem: str) -> None:
        self._history.violate(f"{self._name} {problem}")
        self._is_over = True


async def watch_coordinators(
    hosts: Sequence[Host], history: History, tally: AgreementTally | None = None
) -> None:
    """Check the coordinators of every process of ``hosts``. Runs until the task is cancelled.

    Several hosts are replicas of the same log. Records that were committed in one leader's term must exist in
    the next term, on any host. The attribute ``exhibit`` of each process must be its node.
    """
    tally = tally or AgreementTally()
    replicated = len(hosts) > 1
    coordinators: dict[tuple[str, int], CoordinatorAgreement] = {}

    def agreement_of(host: Host, led: ShardHost[Any, Any]) -> CoordinatorAgreement:
        key = (led.name, 0 if replicated else _boot_that_counts(host, led))
        if key not in coordinators:
            coordinators[key] = CoordinatorAgreement(led.name, history, tally)
        return coordinators[key]

    watched = [_WatchedHost(host) for host in hosts]
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        for each in watched:
            await each.check(agreement_of)


class CoordinatorWatch:
    """Run :func:`watch_coordinators` at the same time as a scenario, on the current event loop. Without hosts
    nothing is checked."""

    def __init__(self, hosts: Sequence[Host], history: History, tally: AgreementTally) -> None:
        self._history = history
        self._task = asyncio.create_task(watch_coordinators(hosts, history, tally)) if hosts else None

    def end(self) -> None:
        """End the checks. If an error has already ended the checks, nothing was checked after the error,
        which is a violation."""
        watch = self._task
        if watch is None:
            return
        if watch.done() and watch.exception() is not None:
            self._history.violate(f"the watch of the coordinators failed: {watch.exception()!r}")
        watch.cancel()


class _WatchedHost:
    """A host with the registry of its newest process. The check runs often and usually finds no change, so
    the registry is not searched each time."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._node: Any = None
        self._registry: CoordinatorRegistry | None = None

    async def check(self, agreement_of: Callable[[Host, ShardHost[Any, Any]], CoordinatorAgreement]) -> None:
        """Check the coordinators that the host's process leads."""
        process = self._host.process
        node: Any = None if process is None or not process.alive else process.exhibit
        if process is None or node is None or process.paused:
            return
        if node is not self._node or self._registry is None:
            self._node, self._registry = node, _registry(node)
        if self._registry is None:
            return
        for runtime in self._registry.runtimes():
            for partition in runtime.partitions:
                led = runtime.led(partition)
                if led is not None and process.alive:
                    await agreement_of(self._host, led).check(process.name, led)


def _without_effects(reference: Any) -> Any:
    """Return a shard whose replay only changes its state. Otherwise the reference of a transaction
    coordinator would make the node write markers."""
    if isinstance(reference, TransactionShard):
        setattr(reference, "_on_prepared", lambda: None)  # noqa: B010 (a hook of one object)
    return reference


def differences(led: CanonicalState, expected: CanonicalState) -> str:
    """Describe the difference between two states of a coordinator. For each part that differs, this names the
    first row that only one of the states has.

    If all parts are equal, this names the first other value that differs. Values that the leader's shard has
    not written are ignored. The result is empty if the states are equal.
    """
    found = []
    for part in sorted(led.parts.keys() | expected.parts.keys()):
        ours, theirs = led.parts.get(part, []), expected.parts.get(part, [])
        if ours != theirs:
            only_ours = next((row for row in ours if row not in theirs), None)
            only_theirs = next((row for row in theirs if row not in ours), None)
            found.append(f"{part}: {only_ours} against {only_theirs}")
    if found:
        return "; ".join(found)
    for name in sorted((led.named.keys() | expected.named.keys()) - led.unwritten):
        if led.named.get(name) != expected.named.get(name):
            return f"{name}: {led.named.get(name)} against {expected.named.get(name)}"
    return ""


def _boot_that_counts(host: Host, led: ShardHost[Any, Any]) -> int:
    """Return the boot number of the host if the log commits a record as soon as the record is written. For
    other logs, return a constant.

    In a log of the first kind, a loss of power may remove records that were written and not synced. The
    reference of the log then starts again with the remaining log, and the clients' histories check the lost
    part. If a log commits only synced records, its reference is never replaced, because each record before a
    high watermark survives any loss of power.
    """
    return 0 if led.kind.topic.is_decisive else host.boot


def _registry(node: Any) -> "CoordinatorRegistry | None":
    """Return the registry with the runtimes of all kinds that the node's subsystems have contributed.

    ``None`` before the node has its registry.
    """
    # This import is local, because the tiny node runs without the server.
    from moldau.server.subsystems.find_coordinator import CoordinatorsSubsystem

    coordinators = node.find(CoordinatorsSubsystem)
    if coordinators is None:
        return None
    for runtime in coordinators.registry.runtimes():
        # This check includes kinds of coordinators that this scenario does not use. If a kind has no
        # canonical form, every scenario fails.
        runtime.kind.new_shard(0).canonical()
    registry: CoordinatorRegistry = coordinators.registry
    return registry
