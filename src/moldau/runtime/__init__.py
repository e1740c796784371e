"""The ports through which Moldau uses time, randomness, disks and threads.

All code of the higher floors gets these ports as arguments. Therefore a whole node can run unchanged on a
simulated machine (see ``moldau.simulation``). ``moldau.runtime`` is the only package that every other package
may import.
"""

from moldau.runtime.clock import Clock, DeletionClock, SystemClock
from moldau.runtime.entropy import Entropy, SeededEntropy, SystemEntropy
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.files.disk import Disk, DiskError, DiskSpace, File, Lock
from moldau.runtime.files.folders import DurableFolders
from moldau.runtime.files.local_disk import LocalDisk
from moldau.runtime.machine import Machine
from moldau.runtime.unexpected import UnexpectedErrors
from moldau.runtime.workers import InlineWorkers, ThreadWorkers, Workers

__all__ = [
    "Clock",
    "DeletionClock",
    "Disk",
    "DiskError",
    "DiskSpace",
    "DurableFolders",
    "Entropy",
    "ErrorCode",
    "File",
    "InlineWorkers",
    "KafkaError",
    "LocalDisk",
    "Lock",
    "Machine",
    "SeededEntropy",
    "SystemClock",
    "SystemEntropy",
    "ThreadWorkers",
    "UnexpectedErrors",
    "Workers",
]
