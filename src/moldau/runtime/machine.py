"""The ports of a node. They belong to a real machine or to a simulated machine."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from moldau.runtime.clock import Clock, DeletionClock, SystemClock
from moldau.runtime.entropy import Entropy, SystemEntropy
from moldau.runtime.fair_lane import FairLane
from moldau.runtime.files.descriptor_shares import allow_many_open_files
from moldau.runtime.files.disk import Disk
from moldau.runtime.files.kernel_syncs import KernelSyncs
from moldau.runtime.files.local_disk import LocalDisk
from moldau.runtime.files.syncs import FileSyncs, WorkerSyncs
from moldau.runtime.unexpected import UnexpectedErrors
from moldau.runtime.unreadable import UnreadableBatches
from moldau.runtime.workers import ThreadWorkers, Workers

OPENING = "moldau-opening"
"""Name of the thread of ``Machine.opening``."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The ports of a node: clock, entropy, disk, workers. The network is the network of the running event
    loop."""

    clock: Clock
    entropy: Entropy
    disk: Disk
    workers: Workers
    open_sqlite: Callable[[str], apsw.Connection] = apsw.Connection
    """A function that opens the SQLite database at an absolute path of ``disk``."""
    unexpected: UnexpectedErrors = field(default_factory=UnexpectedErrors)
    """Receives reports of exceptions that no code expects."""
    unreadable: UnreadableBatches = field(default_factory=UnreadableBatches)
    """Receives reports of batches whose records cannot be read."""
    deletion_clock: DeletionClock = field(init=False)
    """A clock for the decision whether data are old enough to be deleted. If ``clock`` jumps ahead, this
    clock does not jump."""

    syncs: FileSyncs = field(init=False)
    """Syncs the files of logs that wait for each sync."""

    opening: FairLane = field(init=False)
    """The thread that decompresses batches that are too large for the event loop. It serves all clients
    fairly."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "deletion_clock", DeletionClock(self.clock))
        object.__setattr__(self, "syncs", self.syncs_with(self.workers))
        object.__setattr__(self, "opening", FairLane(self.workers.lane(OPENING)))

    boot_id: str = ""
    """Identifies the current boot of the machine. It is empty when the boot is not known."""

    syncs_with: Callable[[Workers], FileSyncs] = WorkerSyncs
    """A function that makes ``syncs`` from the workers."""

    @staticmethod
    def real() -> "Machine":
        """Return the ports of this machine: system clock, local disks and a small thread pool. The soft limit
        of open files is raised to the hard limit."""
        allow_many_open_files()
        return Machine(
            SystemClock(),
            SystemEntropy(),
            LocalDisk(),
            ThreadWorkers(min(8, 2 + (os.cpu_count() or 1))),
            syncs_with=lambda workers: KernelSyncs(WorkerSyncs(workers)),
            boot_id=_boot_id(),
        )

    def close(self) -> None:
        """Wait for the workers and for syncs in progress. Call this after the event loop has ended."""
        self.syncs.close()
        self.workers.close()


def _boot_id() -> str:
    """The boot id. Only Linux has a boot id in this form."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
