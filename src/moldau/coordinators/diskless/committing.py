"""Makes a coordinator's decisions about files, each after the earlier ones of the same broker."""

import asyncio

from moldau.coordinators.diskless.calls import CommitFileCall, CommitFileResult
from moldau.coordinators.diskless.state.records import DisklessRecord
from moldau.coordinators.diskless.state.shard import DisklessShard
from moldau.coordinators.runtime import CoordinatorRuntime


def commit_file(
    runtime: CoordinatorRuntime[DisklessShard, DisklessRecord],
    coordinator_id: int,
    call: CommitFileCall,
    elapsed_ms: int,
) -> "asyncio.Future[CommitFileResult]":
    """Decide a file now, and then the files that have waited for it. Each file is decided after the previous
    file is replayed."""
    answer: asyncio.Future[CommitFileResult] = runtime.write(
        coordinator_id, lambda shard, now_ms, token: shard.commit_file(call, now_ms, token, elapsed_ms)
    )
    while _has_due(runtime, coordinator_id):
        due = runtime.write(
            coordinator_id, lambda shard, now_ms, token: shard.commit_due(now_ms, token, elapsed_ms)
        )
        due.add_done_callback(_ignore)
    return answer


def _has_due(runtime: CoordinatorRuntime[DisklessShard, DisklessRecord], coordinator_id: int) -> bool:
    host = runtime.led(coordinator_id)
    return host is not None and runtime.is_active(coordinator_id) and host.shard.has_due_commit


def _ignore(due: "asyncio.Future[None]") -> None:
    """The answer goes to the waiting call. When the coordinator moves, that call fails, too."""
    if not due.cancelled():
        due.exception()
