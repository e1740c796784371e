"""Entries that an index has dropped do not come back after a loss of power."""

import random

import pytest

from moldau.simulation.world.disks.disk import MountedDisk, SimulatedDisk
from moldau.simulation.world.process import Process
from moldau.storage.log.append_info import AbortedEntry
from moldau.storage.segments.offset_index import OffsetIndex
from moldau.storage.segments.transaction_index import TransactionIndex

PATH = "/data/00000000000000000000.index"


def written_index(disk: MountedDisk) -> OffsetIndex:
    """An index whose two entries are durable."""
    disk.make_dirs("/data")
    disk.sync_dir("/")
    index = OffsetIndex(disk, PATH, 0, 1_000)
    index.create()
    index.append(3, 707)
    index.append(5, 1_414)
    index.write_out()
    index.sync()
    disk.sync_dir("/data")
    return index


@pytest.mark.parametrize("how", ["truncated", "created again"])
def test_dropped_entries_of_a_synced_index_do_not_come_back(how: str) -> None:
    # The simulated disk keeps a random part of the unsynced changes.
    for seed in range(20):
        device = SimulatedDisk(random.Random(seed), lambda: 0, lambda _event: None)
        disk = device.mount(Process("test"))
        index = written_index(disk)
        if how == "truncated":
            index.truncate_to(0)
        else:
            index.create()
        index.seal()
        index.sync()
        device.crash()
        assert disk.size(PATH) == 0


def test_dropped_transactions_of_a_synced_index_do_not_come_back() -> None:
    """If a dropped entry came back, a read_committed consumer could skip committed records, because the entry
    says that their transaction was aborted."""
    path = "/data/00000000000000000000.txnindex"
    for seed in range(20):
        device = SimulatedDisk(random.Random(seed), lambda: 0, lambda _event: None)
        disk = device.mount(Process("test"))
        disk.make_dirs("/data")
        disk.sync_dir("/")
        index = TransactionIndex(disk, path, f"{path}.sum")
        index.append(AbortedEntry(producer_id=7, first_offset=3, last_offset=9, last_stable_offset=10))
        index.sync()
        disk.sync_dir("/data")
        index.truncate_to(5)
        index.sync()
        device.crash()
        assert disk.size(path) == 0
