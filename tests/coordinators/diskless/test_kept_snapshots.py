"""A coordinator keeps two snapshots. A follower that is slightly behind then still finds its records in the
log."""

import asyncio
from pathlib import Path

from diskless_house import House, batch, file, topic

from moldau.storage.snapshots.replicated_log import LogPosition


def test_the_snapshot_before_the_newest_is_kept_with_the_records_after_it(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic()])
        taken: list[LogPosition] = []
        for number in range(4):
            await service.commit_file(0, file(f"f{number}", batch(0, 2)))
            snapshot_id = await service.snapshot(0)
            assert snapshot_id is not None
            taken.append(snapshot_id)
            assert list(house.snapshot_log.snapshot_ids()) == taken[-2:]
            assert house.snapshot_log.start_offset == (0 if number == 0 else taken[-2].offset)
        assert await service.snapshot(0) is None, "nothing has changed since the last snapshot"
        assert list(house.snapshot_log.snapshot_ids()) == taken[-2:]
        await house.stop()

    asyncio.run(asyncio.wait_for(scene(), 600))
