"""Runs a coordinator's decisions about commits of files. The coordinator decides on the files of one broker
in the order of their commit numbers."""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from moldau.coordinators.diskless.calls import CommitFileCall, CommitFileResult
from moldau.coordinators.diskless.state.commit_order import WAITING_MS, WaitingCommit
from moldau.coordinators.diskless.state.records import DisklessRecord
from moldau.coordinators.diskless.state.shard import DisklessShard
from moldau.coordinators.effects import Effects, Reply
from moldau.coordinators.runtime import CoordinatorRuntime
from moldau.runtime import ErrorCode, KafkaError

_WAITING_S: Final = WAITING_MS / 1000 + 0.002
"""Time in seconds after which waiting commits are checked. It is a little longer than ``WAITING_MS``, because
the measured times in ms are rounded down."""

_Runtime: TypeAlias = CoordinatorRuntime[DisklessShard, DisklessRecord]


class _Moment(NamedTuple):
    """The time of a decision, by two clocks that do not depend on this node's wall clock."""

    elapsed_ms: int
    """Time of a clock without jumps."""
    cluster_ms: int
    """The time of the active controller's clock, from which the ages of files are computed."""


def commit_file(
    runtime: _Runtime, coordinator_id: int, call: CommitFileCall, cluster_now_ms: Callable[[], int]
) -> "asyncio.Future[CommitFileResult]":
    """Decide a file now if it is the next file of its broker, and then the files that have waited for it.
    Each decision is made after the previous decision was replayed."""
    moment = _Moment(_elapsed_ms(), cluster_now_ms())
    answer: asyncio.Future[CommitFileResult] = runtime.write(
        coordinator_id, lambda shard, now_ms, token: shard.commit_file(call, now_ms, token, *moment)
    )
    shard = _active(runtime, coordinator_id)
    while shard is not None and (waiting := shard.order.due()) is not None:
        _decide(runtime, coordinator_id, waiting, moment)
        shard = _active(runtime, coordinator_id)
    if shard is not None and not answer.done() and shard.order.has_waiting:
        asyncio.get_running_loop().call_later(_WAITING_S, _refuse_outdated, runtime, coordinator_id)
    return answer


def _elapsed_ms() -> int:
    """The time in ms of a clock without jumps."""
    return int(asyncio.get_running_loop().time() * 1000)


def _active(runtime: _Runtime, coordinator_id: int) -> DisklessShard | None:
    host = runtime.led(coordinator_id)
    return host.shard if host is not None and runtime.is_active(coordinator_id) else None


def _decide(runtime: _Runtime, coordinator_id: int, waiting: WaitingCommit, moment: _Moment) -> None:
    """Decide the next waiting file. If the decision fails because of a bug, the error is also passed to the
    waiting call. Without this error, the call would never get a response, because its file was removed from
    the list of waiting files."""
    due = runtime.write(coordinator_id, lambda shard, now_ms, token: shard.commit_due(now_ms, token, *moment))
    due.add_done_callback(_ignore)
    if due.done() and due.exception() is not None:
        defect = Reply(waiting.token, KafkaError(ErrorCode.unknown_server_error, "The decision failed."))
        refused = runtime.write(
            coordinator_id, lambda shard, _, token: Effects((), (defect, Reply(token, None)))
        )
        refused.add_done_callback(_ignore)


def _refuse_outdated(runtime: _Runtime, coordinator_id: int) -> None:
    elapsed_ms = _elapsed_ms()
    runtime.write(
        coordinator_id, lambda shard, _, token: shard.refuse_outdated(elapsed_ms, token)
    ).add_done_callback(_ignore)


def _ignore(due: "asyncio.Future[None]") -> None:
    """Ignore the result or the error of the operation ``due``, because the waiting call gets its own
    response. If ``due`` fails because the coordinator moves to another broker, the waiting call also gets an
    error."""
    if not due.cancelled():
        due.exception()
