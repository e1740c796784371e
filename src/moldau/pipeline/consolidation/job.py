"""Consolidation on Spark: leaders plan segments, tasks build and copy them, leaders publish them.

The driver makes no decisions. A crashed driver leaves orphans, and plans that expire with their leases. Two
drivers get different partitions. A copy may be reported late, twice or to a former leader. Such a report is
refused, or gets the same response as the first report. The only compare-and-set is the prune, by which the
coordinator advances the start of the WAL.
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from moldau.client.cluster import Client, connected
from moldau.client.consolidation import ClusterPlan, give_up, plan_everywhere, publish_everywhere, renew
from moldau.client.errors import ToolError
from moldau.objects.factory import StorageSettings
from moldau.pipeline.consolidation.units import BuildUnits, CopiedUnit
from moldau.pipeline.reading.wal_access import OPTION_PREFIX, find_storage
from moldau.pipeline.unit_runs import RunUnits
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.tiered.consolidation.leader import REFUSALS
from moldau.tiered.consolidation.plan import lay_out_units
from moldau.tiered.consolidation.work import BuiltCopy

logger = logging.getLogger(__name__)

T = TypeVar("T")

REMOTE_PREFIX: Final = "rsm.config."
UNIT_BYTES: Final = 128 * 1024**2
PLAN_BYTES: Final = 4 * 1024**3
LEASE_MS: Final = 600_000
RENEWALS_A_LEASE: Final = 4
BARREN_ROUNDS_MAX: Final = 3
"""Number of consecutive rounds without a published segment. After this number the job fails."""
PUBLISH_TRIES: Final = 5
PUBLISH_BACKOFF_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ConsolidateJob:
    """Options of a consolidation: the topics, and the size of tasks."""

    bootstrap: str
    topics: tuple[str, ...] = ()
    """The diskless topics to consolidate; if it is empty, all diskless topics."""
    unit_bytes: int = UNIT_BYTES
    """Maximum total size of the segments that a task builds together. A larger segment has a task of its
    own.
    """
    plan_bytes: int = PLAN_BYTES
    lease_ms: int = LEASE_MS
    timeout_s: float = 30.0
    storage: Mapping[str, str] = field(default_factory=dict)
    """``diskless.storage.*`` and ``rsm.config.*``. They are needed if the brokers do not provide these
    configs."""


@dataclass(slots=True)
class _Totals:
    segments: int = 0
    size_bytes: int = 0
    units: int = 0
    failures: list[str] = field(default_factory=list)


def consolidate_once(job: ConsolidateJob, run: RunUnits) -> dict[str, Any]:
    """Consolidate all records for which leaders can plan segments now. Return the results as JSON, with the
    leases of other engines.

    Raises :class:`ToolError` if this cluster cannot be consolidated from outside, or when several plans in a
    row fail. Raises ``KafkaError`` for errors of brokers.
    """
    totals = _Totals()
    barren = 0
    while True:
        plan = _ask(job, lambda client: _plan(client, job))
        if plan.is_empty:
            break
        before = totals.segments
        try:
            _carry_out(job, plan, run, totals)
        finally:
            # Release the unpublished segments, so that other engines may plan them again at once. If this
            # driver is killed, the other engines must wait until its lease ends.
            _ask_quietly(job, partial(give_up, plan=plan))
        barren = barren + 1 if totals.segments == before else 0
        if barren == BARREN_ROUNDS_MAX:
            reason = totals.failures[-1] if totals.failures else "all copies were refused"
            raise ToolError(f"nothing could be consolidated: {reason}")
    return {
        "segments": totals.segments,
        "bytes": totals.size_bytes,
        "units": totals.units,
        "failures": totals.failures,
        "held": [one._asdict() for one in plan.held],
    }


async def _plan(client: Client, job: ConsolidateJob) -> ClusterPlan:
    topics = job.topics or None
    engine = f"spark on {socket.gethostname()} (process {os.getpid()})"
    return await plan_everywhere(
        client, engine, max_bytes=job.plan_bytes, lease_ms=job.lease_ms, topics=topics
    )


def _carry_out(job: ConsolidateJob, plan: ClusterPlan, run: RunUnits, totals: _Totals) -> None:
    build = _ask(job, lambda client: _builder(client, job, plan))
    work = {one.segment.segment_id: one for each in plan.plans.values() for one in each.work}
    units = lay_out_units([one.segment for one in work.values()], job.unit_bytes)
    with _renewing(job, plan):
        built: list[CopiedUnit] = run(build, units)
        copies = [
            BuiltCopy(
                work[one.segment_id].segment.partition,
                one.segment_id,
                work[one.segment_id].epoch,
                one.custom_metadata,
            )
            for unit in built
            for one in unit.segments
        ]
        published = _publish(job, plan, copies, totals)
    totals.units += len(units)
    totals.failures += [unit.failure for unit in built if unit.failure is not None]
    totals.segments += len(published)
    totals.size_bytes += sum(work[id].segment.size_bytes for id in published)


async def _builder(client: Client, job: ConsolidateJob, plan: ClusterPlan) -> BuildUnits:
    """The object that builds units, with access to both stores. Raises :class:`ToolError` if a store is not
    accessible."""
    wal = await find_storage(
        client, {key: value for key, value in job.storage.items() if key.startswith(OPTION_PREFIX)}
    )
    (place, *others) = {plan.places[broker] for broker, each in plan.plans.items() if each.work}
    if others:
        raise ToolError(f"leaders keep remote segments at different places: {place}, {others[0]}")
    if place.class_name is not None:
        raise ToolError(
            f"leaders keep remote segments by {place.class_name}, and tasks only know the built-in manager:"
            " let the brokers consolidate (diskless.consolidation.enable)"
        )
    if place.url is None or place.url.startswith("memory:"):
        raise ToolError(f"tasks cannot write to the leaders' remote storage {place.url}")
    return BuildUnits(wal, _remote_configs(job, wal, place.url, place.prefix))


def _remote_configs(
    job: ConsolidateJob, wal: StorageSettings, url: str, prefix: str | None
) -> dict[str, str]:
    """Configs of the remote storage. As in a broker, the default is the store of the WAL with the same
    options."""
    given = {
        key.removeprefix(REMOTE_PREFIX): value
        for key, value in job.storage.items()
        if key.startswith(REMOTE_PREFIX)
    }
    configs = {**(wal.options if url == wal.url else {}), **given, "url": given.get("url", url)}
    if prefix is not None:
        configs["prefix"] = prefix
    return configs


def _publish(
    job: ConsolidateJob, plan: ClusterPlan, copies: Sequence[BuiltCopy], totals: _Totals
) -> list[UUID]:
    """Report copies to the leaders until each copy is published or refused. The same report may be sent
    several times."""
    published: list[UUID] = []
    left = list(copies)
    for attempt in range(PUBLISH_TRIES):
        if not left:
            break
        if attempt:
            threading.Event().wait(PUBLISH_BACKOFF_S)
        again: list[BuiltCopy] = []
        answers = _ask(job, partial(publish_everywhere, plan=plan, copies=tuple(left)))
        for copy, answer in zip(left, answers, strict=True):
            if answer.error is ErrorCode.none and not answer.is_waiting:
                published.append(copy.segment_id)
            elif answer.error in REFUSALS:
                totals.failures.append(f"{copy.partition}: {answer.message}")
            else:
                again.append(copy)
        if len(again) == len(left) and all(answer.is_waiting for answer in answers):
            break  # these copies wait for segments that were not built
        left = again
    if left:
        totals.failures.append(f"{len(left)} segments are not published now")
    return published


@contextmanager
def _renewing(job: ConsolidateJob, plan: ClusterPlan) -> Iterator[None]:
    """Renew the leases from a separate thread while the ``with`` block runs."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(job.lease_ms / 1000 / RENEWALS_A_LEASE):
            # An error is ignored. If a leader gets no renewal until the lease ends, it may refuse the copies
            # later.
            _ask_quietly(job, lambda client: renew(client, plan, job.lease_ms))

    keeper = threading.Thread(target=keep, name="moldau-consolidation-lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()


def _ask(job: ConsolidateJob, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    async def ask() -> T:
        async with connected(job.bootstrap, job.timeout_s) as client:
            return await work(client)

    return asyncio.run(ask())


def _ask_quietly(job: ConsolidateJob, work: Callable[[Client], Coroutine[Any, Any, Any]]) -> None:
    try:
        _ask(job, work)
    except (KafkaError, OSError) as error:
        logger.warning("leaders did not get the reports: %s", error)
