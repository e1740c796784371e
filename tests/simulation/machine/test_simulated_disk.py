"""The effects of a loss of power, of a kill and of an injected error on a simulated disk."""

import errno
import random

import pytest

from moldau.runtime import DiskError
from moldau.simulation.world.disks.disk import DiskFault, MountedDisk, SimulatedDisk
from moldau.simulation.world.disks.volume import SECTOR_BYTES
from moldau.simulation.world.process import Process

SEEDS = range(60)


def new_disk(seed: int) -> tuple[SimulatedDisk, MountedDisk]:
    device = SimulatedDisk(random.Random(seed), lambda: 0, lambda _event: None)
    disk = device.mount(Process("test"))
    disk.make_dirs("/data")
    disk.sync_dir("/")
    return device, disk


def test_synced_bytes_survive_and_unsynced_bytes_may_be_lost() -> None:
    outcomes = set()
    for seed in SEEDS:
        device, disk = new_disk(seed)
        file = disk.open("/data/log", create=True)
        disk.sync_dir("/data")
        file.write_at(0, [b"s" * 700])
        file.sync()
        file.write_at(700, [b"u" * 2_000])
        device.crash()
        content = disk.read("/data/log")
        assert content[:700] == b"s" * 700
        assert set(content[700:]) <= set(b"u\0")
        outcomes.add((len(content), content.count(b"u")))
    assert (700, 0) in outcomes
    assert (2_700, 2_000) in outcomes
    assert len(outcomes) > 4  # writes are torn at different sectors, and some sectors contain zeros


def test_unsynced_overwrite_is_torn_by_sector() -> None:
    seen = set()
    for seed in SEEDS:
        device, disk = new_disk(seed)
        file = disk.open("/data/f", create=True)
        disk.sync_dir("/data")
        file.write_at(0, [b"o" * SECTOR_BYTES * 3])
        file.sync()
        file.write_at(0, [b"n" * SECTOR_BYTES * 3])
        device.crash()
        content = disk.read("/data/f")
        sectors = [content[start : start + SECTOR_BYTES] for start in range(0, len(content), SECTOR_BYTES)]
        assert all(len(set(sector)) == 1 for sector in sectors)
        seen.add("".join(chr(sector[0]) for sector in sectors))
    assert {"ooo", "nnn"} < seen


def test_unsynced_truncation_may_come_back() -> None:
    sizes = set()
    for seed in SEEDS:
        device, disk = new_disk(seed)
        file = disk.open("/data/f", create=True)
        disk.sync_dir("/data")
        file.write_at(0, [b"o" * 2_000])
        file.sync()
        file.truncate(100)
        device.crash()
        sizes.add(disk.size("/data/f"))
    assert sizes == {100, 2_000}


def test_a_new_file_needs_a_folder_sync_to_be_found() -> None:
    found = set()
    for seed in SEEDS:
        device, disk = new_disk(seed)
        file = disk.open("/data/f", create=True)
        file.write_at(0, [b"x"])
        file.sync()
        device.crash()
        found.add(disk.exists("/data/f"))
        device, disk = new_disk(seed)
        file = disk.open("/data/f", create=True)
        file.write_at(0, [b"x"])
        file.sync()
        disk.sync_dir("/data")
        disk.rename("/data/f", "/data/g")
        device.crash()
        assert disk.list("/data") in (["f"], ["g"])
        assert disk.read("/data/" + disk.list("/data")[0]) == b"x"
    assert found == {True, False}


def test_write_atomically_is_old_or_new_and_then_durable() -> None:
    for seed in SEEDS:
        device, disk = new_disk(seed)
        disk.write_atomically("/data/f", b"old" * 400)
        device.crash()
        assert disk.read("/data/f") == b"old" * 400
        device.faults.append(DiskFault("sync", errno.EIO))
        with pytest.raises(DiskError):
            disk.write_atomically("/data/f", b"new" * 400)
        device.crash()
        assert disk.read("/data/f") == b"old" * 400


def test_after_a_failed_sync_a_later_one_does_not_bring_the_data_back() -> None:
    lost = 0
    for seed in SEEDS:
        device, disk = new_disk(seed)
        file = disk.open("/data/f", create=True)
        disk.sync_dir("/data")
        file.write_at(0, [b"x" * 3 * SECTOR_BYTES])
        device.faults.append(DiskFault("sync", errno.EIO))
        with pytest.raises(DiskError) as failed:
            file.sync()
        assert failed.value.errno == errno.EIO
        file.sync()
        assert disk.read("/data/f") == b"x" * 3 * SECTOR_BYTES
        device.crash()
        lost += disk.read("/data/f") != b"x" * 3 * SECTOR_BYTES
    assert lost > len(SEEDS) / 2


def test_a_full_disk_writes_a_part_and_raises_an_error() -> None:
    device, disk = new_disk(1)
    device.capacity_bytes = 1_000
    file = disk.open("/data/f", create=True)
    file.write_at(0, [b"x" * 900])
    with pytest.raises(DiskError) as refused:
        file.write_at(900, [b"y" * 200])
    assert refused.value.errno == errno.ENOSPC
    assert 900 <= file.size() <= 1_000
    device.capacity_bytes = None
    file.write_at(900, [b"y" * 200])


def test_a_dead_process_has_no_disk_and_no_lock() -> None:
    device, disk = new_disk(1)
    file = disk.open("/data/f", create=True)
    file.write_at(0, [b"kept"])
    disk.lock("/data/.lock")
    disk.process.alive = False
    for callback in disk.process.on_exit:
        callback()
    with pytest.raises(DiskError, match="dead"):
        file.write_at(0, [b"lost"])
    with pytest.raises(DiskError, match="dead"):
        disk.read("/data/f")
    heir = device.mount(Process("heir"))
    assert heir.read("/data/f") == b"kept"
    heir.lock("/data/.lock")
