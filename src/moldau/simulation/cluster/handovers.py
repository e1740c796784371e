"""Checks that a broker hands over its leaderships before it stops.

A broker may stop without the controller's agreement only if no controller responds for half of the session
time-out. Without faults of the network, a controller responds unless slow disks prevent all commits of the
metadata log. Therefore the check reads from the simulated disks how long their syncs took. It does not rely
on what the broker itself noted about its stop.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.simulation.history import History
from moldau.simulation.world.world import World

OTHER_DELAYS_S: Final = 0.1
"""The maximum part of a silence that no sync explains. It consists of the pause between two heartbeats
(50 ms) and the latencies of the network."""

Span = tuple[float, float]
"""The beginning and the end of a period, in seconds of the event loop."""


@dataclass(frozen=True, slots=True)
class KeptLeadership:
    """A stop after which the stopped broker still led a partition."""

    name: str
    controller_id: int | None
    """The active controller at the beginning of the stop."""
    stop: Span


class Handovers:
    """Collects the stops after which the stopped broker still leads, and reports the violations."""

    def __init__(
        self, world: World, history: History, controller_ids: Sequence[int], silence_s: float
    ) -> None:
        """``silence_s`` is the time without responses after which a broker stops without agreement."""
        self._world = world
        self._history = history
        self._controller_ids = controller_ids
        self._silence_s = silence_s
        self._kept: list[KeptLeadership] = []

    def still_leads(self, name: str, controller_id: int | None, began_s: float) -> None:
        """Called when a broker has just stopped, and still leads."""
        self._kept.append(KeptLeadership(name, controller_id, (began_s, self._world.loop.time())))

    def check(self) -> None:
        """Report the collected stops that slow disks do not explain. Call this method when the syncs that
        were in progress during these stops have ended."""
        kept, self._kept = self._kept, []
        for each in kept:
            syncs = {node_id: self._metadata_syncs(node_id) for node_id in self._controller_ids}
            stalls = list(commit_stalls(syncs, each.controller_id))
            if longest_stall_s(stalls, each.stop, self._silence_s) < self._silence_s - OTHER_DELAYS_S:
                self._history.violate(f"{each.name} has stopped and still leads")

    def _metadata_syncs(self, node_id: int) -> list[Span]:
        """The periods in which a node synced records of the metadata log."""
        return [
            (job.began_s, job.ended_s)
            for job in self._world.host(f"node-{node_id}").sync_jobs
            if any(f"/{CLUSTER_METADATA_FOLDER}/" in path and path.endswith(".log") for path in job.paths)
        ]


def commit_stalls(syncs: Mapping[int, Sequence[Span]], controller_id: int | None) -> Iterator[Span]:
    """Return the periods in which nothing could be committed, in order. ``syncs`` has an entry for each
    voter.

    In such a period either the active controller syncs, because it appends nothing during a sync, or a
    majority of the voters syncs.
    """
    changes = [
        (moment, change, node_id)
        for node_id, spans in syncs.items()
        for began_s, ended_s in spans
        for moment, change in ((began_s, 1), (ended_s, -1))
    ]
    counts = dict.fromkeys(syncs, 0)
    since_s: float | None = None
    for moment, change, node_id in sorted(changes):
        counts[node_id] += change
        is_majority = 2 * sum(count > 0 for count in counts.values()) > len(syncs)
        is_stalled = is_majority or (controller_id is not None and counts.get(controller_id, 0) > 0)
        if is_stalled and since_s is None:
            since_s = moment
        elif not is_stalled and since_s is not None:
            yield since_s, moment
            since_s = None


def longest_stall_s(stalls: Sequence[Span], within: Span, window_s: float) -> float:
    """Return the maximum total time of stalls in a window of ``window_s`` seconds within the period
    ``within``. The result is 0 if the period is shorter than the window."""
    first_s, last_s = within[0], within[1] - window_s
    if last_s < first_s:
        return 0.0
    # A best window begins with a stall, ends with a stall, or touches the border of the period.
    begins = [first_s, last_s]
    for began_s, ended_s in stalls:
        begins += [began_s, ended_s - window_s]
    return max(
        sum(max(0.0, min(ended_s, begin + window_s) - max(began_s, begin)) for began_s, ended_s in stalls)
        for begin in (min(max(each, first_s), last_s) for each in begins)
    )
