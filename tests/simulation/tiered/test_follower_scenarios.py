"""The follower fetch scenarios of KIP-405, on two replicas of a tiered partition, in virtual time.

The names of the records are those of the figures in KIP-405. Each story ends with the same judgement: each
replica leads once, and consumers read every record of the valid lineage, and no other record, from the first
to the last offset. The leader epochs and the producers of the replicas agree, and their local logs are equal
byte for byte.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from partition_clients import StoredRecord
from simulated_cluster import KeptSectors
from tiered_replicas import NEVER_ROLLS, ROLLS, A, B, Segment, TieredReplicas, play

from moldau.protocol.messages.fetch import EpochEndOffset
from moldau.replication import reads as local_reads
from moldau.runtime import ErrorCode
from moldau.server.subsystems.tiered import reads as remote_reads
from moldau.simulation.world.world import World
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.files.truncation import Truncation
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.manager import RemoteLogMetadataManager
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.reading import reader
from moldau.tiered.reading.requests import RemoteRange
from moldau.tiered.restoring import fetch_auxiliary_state

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

UNCLEAN = {"unclean.leader.election.enable": "true"}


def epoch(story: TieredReplicas) -> int:
    return int(story.row().leader_epoch)


async def expect_first(story: TieredReplicas, wanted: StoredRecord, last_epoch: int = -1) -> None:
    """Read the record at an offset. ``last_epoch`` is the epoch of the record that was read before it."""
    for current_epoch in (-1, epoch(story)):
        found = await story.first_read(wanted.offset, current_epoch=current_epoch, last_epoch=last_epoch)
        story.expect(found == wanted, f"{found} is read at offset {wanted.offset} after epoch {last_epoch}")


async def expect_diverged(story: TieredReplicas, offset: int, old_epoch: int, end: int) -> None:
    """Check what a consumer gets that has read the records of an old leader up to ``offset``. In the valid
    log, the epoch of that leader ends at ``end``."""
    answer = await story.fetch(offset, current_epoch=old_epoch)
    story.expect(answer.error_code is ErrorCode.fenced_leader_epoch, f"{answer.error_code.name} at {offset}")
    answer = await story.fetch(offset, current_epoch=epoch(story), last_epoch=old_epoch)
    diverging = answer.diverging_epoch
    story.expect(
        diverging == EpochEndOffset(epoch=old_epoch, end_offset=end) and not answer.records,
        f"offset {offset} after epoch {old_epoch} diverges at {diverging}",
    )
    found = await story.end_of_epoch(old_epoch)
    story.expect(found == (old_epoch, end), f"epoch {old_epoch} ends at {found}")


async def expect_moved(story: TieredReplicas, offset: int, last_epoch: int = -1) -> None:
    """Check what the leader answers to a follower whose log ends at ``offset``."""
    answer = await story.fetch(offset, last_epoch=last_epoch, replica_id=B)
    story.expect(
        answer.error_code is ErrorCode.offset_moved_to_tiered_storage,
        f"a follower gets {answer.error_code.name} at {offset}",
    )


def expect_local_start(story: TieredReplicas, broker: int, start: int) -> None:
    found = story.log(broker).log_start_offset, story.log(broker).local_log_start_offset
    story.expect(found == (0, start), f"the log of {broker} begins at {found}, not at (0, {start})")


async def new_follower(story: TieredReplicas, *, wiped: bool) -> None:
    """Scenario 1. The leader's log begins at offset 3 when a follower without data comes.

    The follower is a new replica, or it has lost its disk. The producer of the first three records has no
    records in the local log of the leader, so only the producer snapshot in the tier has its state.
    """
    await story.begin(*((A, B) if wiped else (A,)))
    first = epoch(story)
    await story.write(0, "0", "1", "2", producer="early")
    if wiped:
        await story.stop(B)
        story.wipe(B)
    await story.new_term(A)
    second = epoch(story)
    await story.write(1, "3", "4")
    await story.new_term(A)
    third = epoch(story)
    await story.write(1, "5")
    await story.write(2, "6")
    await story.new_term(A)
    await story.write(2, "7")
    await story.copied(A, Segment(0, 2, (first,)), Segment(3, 5, (second, third)))
    await story.expire(1, 3, A)
    if wiped:
        await story.start(B)
        await story.leads(A, A, B)
    else:
        await story.move((A, B))
    await expect_moved(story, 0)
    expect_local_start(story, B, 3)
    story.expect(story.epochs(A) == story.epochs(B), f"epochs {story.epochs(A)} and {story.epochs(B)}")
    await story.elect(B)
    await story.write_again("early")


async def follower_in_reach(story: TieredReplicas) -> None:
    """Scenario 2.1. A follower was down. The records that it lacks are in the tier, but the leader also has
    them in its local log. The follower fetches them, and keeps its log."""
    await story.begin(A, B)
    first = epoch(story)
    await story.write(0, "0", "1", "2")
    await story.kill(B)
    await story.new_term(A)
    second = epoch(story)
    await story.write(1, "3", "4")
    await story.write(2, "5", "6")
    await story.copied(A, Segment(0, 2, (first,)), Segment(3, 4, (second,)))
    await story.start(B)
    await story.leads(A, A, B)
    expect_local_start(story, A, 0)
    expect_local_start(story, B, 0)
    story.expect(story.log(B).truncation_count == 0, "the follower has truncated its log")


async def follower_out_of_reach(story: TieredReplicas) -> None:
    """Scenario 2.2. A follower ends at offset 4. When it comes back, the leader's local log begins at offset
    9. The follower drops its log and continues at offset 9."""
    await story.begin(A, B)
    first = epoch(story)
    await story.write(0, "0", "1", "2")
    await story.stop(B)
    await story.new_term(A)
    await story.start(B)
    await story.leads(A, A, B)
    second = epoch(story)
    await story.write(1, "3")
    await story.kill(B)
    await story.write(1, "4")
    await story.new_term(A)
    third = epoch(story)
    await story.write(1, "5")
    await story.write(2, "6")
    await story.new_term(A)
    fourth = epoch(story)
    await story.write(2, "7", "8")
    await story.write(3, "9")
    segments = Segment(0, 2, (first,)), Segment(3, 5, (second, third)), Segment(6, 8, (third, fourth))
    await story.copied(A, *segments)
    await story.expire(3, 9, A)
    await story.write(3, "10", "11")
    await story.start(B)
    await story.leads(A, A, B)
    await expect_moved(story, 4, second)
    expect_local_start(story, B, 9)


async def hard_failures(story: TieredReplicas) -> None:
    """Scenario 3. Both replicas lose power. The follower loses the records 1 and 2, which it had not synced.
    It becomes the leader and stores record 3 at offset 1, where the tier has record 1.

    Records are acknowledged before they are synced, which is the default. Broker B has synced record 0,
    because it was stopped cleanly afterwards. Until the loss of power it does not begin new segments, because
    it would sync the closed segment. The leader has synced the segment that it has copied. After the loss of
    power no replica counts as complete (KIP-966), so the topic must allow an unclean election.
    """
    story.cluster.properties[B]["log.roll.ms"] = NEVER_ROLLS
    await story.begin(A, B, configs=UNCLEAN)
    old = epoch(story)
    await story.write(0, "0")
    await story.stop(B)
    await story.start(B)
    await story.leads(A, A, B)
    await story.write(0, "1", producer="lost")
    await story.write(1, "2", producer="lost")
    await story.copied(A, Segment(0, 1, (old,)))
    for broker in (A, B):
        story.world.host(f"node-{broker}").disk.chance = KeptSectors(keeps_all=broker == A)
        story.lose_power(broker)
    del story.lineage[1:]
    story.cluster.properties[B]["log.roll.ms"] = ROLLS
    await story.start(B)
    await story.leads(B, B)
    assert story.log(B).log_end_offset == 1
    new = epoch(story)
    await story.write(1, "3", producer="later")
    await story.start(A)
    await story.leads(B, A, B)
    story.expect(story.log(A).truncation_count == 1, "the former leader has not truncated its log")
    await story.write(2, "4", producer="later")
    await story.copied(B, Segment(0, 1, (old,)), Segment(1, 1, (new,)))
    await story.expire(2, 2, A, B)
    for leader in (B, A):
        await story.elect(leader)
        await expect_first(story, story.lineage[0])
        await expect_first(story, story.lineage[1])
        await expect_first(story, story.lineage[1], old)
        await expect_first(story, story.lineage[2], new)
        await expect_diverged(story, 2, old, 1)


async def unclean_election(story: TieredReplicas) -> None:
    """Scenario 4. Broker B lacks the records 1 to 3 when it is elected. It copies a segment that overlaps
    with the segment of its predecessor, and deletes its local copy. Then the predecessor comes back."""
    await story.begin(A, B, configs=UNCLEAN)
    old = epoch(story)
    await story.write(0, "0")
    story.cut(A, B)
    await story.write(0, "1", "2", producer="lost")
    await story.leads(A, A)
    await story.write(1, "3", producer="lost")
    await story.copied(A, Segment(0, 2, (old,)))
    await story.kill(A)
    await story.leads(B, B)
    story.world.network.heal_all()
    del story.lineage[1:]
    new = epoch(story)
    await story.write(0, "4", producer="later")
    await story.write(1, "5", producer="later")
    await story.copied(B, Segment(0, 2, (old,)), Segment(0, 1, (old, new)))
    await story.expire(1, 2, B)
    await expect_first(story, story.lineage[0])
    await expect_first(story, story.lineage[1])
    await expect_first(story, story.lineage[1], old)
    await expect_first(story, story.lineage[2], new)
    await expect_diverged(story, 2, old, 1)
    await story.start(A)
    await story.leads(B, A, B)
    expect_local_start(story, A, 2)


async def truncation_below_local_log(story: TieredReplicas, *, segments: int) -> None:
    """Broker B lacks the records from offset ``2 * segments`` on when it is elected. The local log of its
    predecessor begins later, because the records before are in the tier. When the predecessor comes back, it
    truncates its log before the first local record. It must know the producer of the first records."""
    await story.begin(A, B, configs=UNCLEAN)
    old = epoch(story)
    await story.write(0, "0", producer="idle")
    await story.write(0, "1")
    if segments == 2:
        await story.write(1, "2", "3")
    common = 2 * segments
    story.cut(A, B)
    await story.write(segments - 1, "lost 1", producer="lost")
    await story.leads(A, A)
    await story.write(segments, "lost 2", producer="lost")
    await story.write(segments + 1, "lost 3", producer="lost")
    copied = [Segment(0, 1, (old,)), Segment(2, 4, (old,))] if segments == 2 else [Segment(0, 2, (old,))]
    await story.copied(A, *copied, Segment(common + 1, common + 1, (old,)))
    await story.expire(segments + 1, common + 2, A)
    await story.kill(A)
    await story.leads(B, B)
    story.world.network.heal_all()
    del story.lineage[common:]
    await story.write(segments, "new 1", producer="later")
    await story.write(segments + 1, "new 2", producer="later")
    await story.start(A)
    await story.leads(B, A, B)
    await story.elect(A)
    await story.write_again("idle")
    await story.write_again("later")


async def truncation_at_local_log_of_leader(story: TieredReplicas) -> None:
    """Broker B lacks record 2 when it is elected, and its local log then begins after the common records. The
    tier has the state of the follower only before and after this offset."""
    await story.begin(A, B, configs=UNCLEAN)
    old = epoch(story)
    await story.write(0, "0", "1")
    story.cut(A, B)
    await story.write(0, "lost 1", producer="lost")
    await story.leads(A, A)
    await story.write(1, "lost 2", producer="lost")
    await story.write(2, "lost 3", producer="lost")
    await story.copied(A, Segment(0, 2, (old,)), Segment(3, 3, (old,)))
    await story.expire(2, 4, A)
    await story.kill(A)
    await story.leads(B, B)
    story.world.network.heal_all()
    await story.write(1, "new 1", producer="later")
    await story.write(2, "new 2", producer="later")
    await story.expire(1, 2, B)
    await story.start(A)
    await story.leads(B, A, B)


async def diverged_tier(story: TieredReplicas) -> None:
    """Scenario 5. After two unclean elections, the tier has a segment of broker B whose records 2 and 3 are
    in no log any more. The records of broker A are valid, although A lacks the epoch of B. Then B comes back
    with an empty disk."""
    await story.begin(A, B, configs=UNCLEAN)
    first = epoch(story)
    await story.write(0, "0", "1")
    story.cut(A, B)
    await story.write(0, "2", "3")
    await story.leads(A, A)
    await story.write(1, "4")
    await story.copied(A, Segment(0, 3, (first,)))
    valid = list(story.lineage)
    await story.kill(A)
    await story.leads(B, B)
    story.world.network.heal_all()
    second = epoch(story)
    await story.write(0, "4 of B", "5 of B", producer="lost")
    await story.write(1, "6 of B", producer="lost")
    await story.copied(B, Segment(0, 3, (first,)), Segment(0, 3, (first, second)))
    await story.kill(B)
    await story.start(A)
    await story.leads(A, A)
    story.lineage[:] = valid
    third = epoch(story)
    await story.write(1, "7")
    await story.write(2, "8")
    await story.copied(
        A, Segment(0, 3, (first,)), Segment(0, 3, (first, second)), Segment(4, 5, (first, third))
    )
    await story.expire(2, 6, A)
    story.wipe(B)
    await story.start(B)
    await story.leads(A, A, B)
    expect_local_start(story, B, 6)
    for leader in (A, B):
        await story.elect(leader)
        await expect_first(story, story.lineage[2], first)
        await expect_first(story, story.lineage[5], first)
        # Broker A has no epoch of B. The records of the next lower epoch end where the next term of A begins.
        answer = await story.fetch(4, current_epoch=epoch(story), last_epoch=second)
        diverging = answer.diverging_epoch
        story.expect(
            diverging == EpochEndOffset(epoch=first, end_offset=5), f"epoch {second} diverges at {diverging}"
        )


@pytest.mark.parametrize("wiped", [False, True], ids=["added", "wiped"])
def test_a_follower_without_data_builds_its_state_from_the_tier(*, wiped: bool) -> None:
    assert play(1, partial(new_follower, wiped=wiped)) == []


def test_a_follower_that_ends_in_the_local_log_of_its_leader_only_fetches() -> None:
    assert play(2, follower_in_reach) == []


def test_a_follower_that_ends_before_the_local_log_of_its_leader_drops_its_own_log() -> None:
    assert play(3, follower_out_of_reach) == []


def test_records_that_were_lost_with_the_power_are_not_read_from_the_tier() -> None:
    assert play(4, hard_failures) == []


def test_records_of_a_leader_before_an_unclean_election_are_not_read_from_the_tier() -> None:
    assert play(5, unclean_election) == []


@pytest.mark.parametrize("segments", [1, 2])
def test_a_follower_that_truncates_below_its_local_log_keeps_all_producers(segments: int) -> None:
    assert play(7, partial(truncation_below_local_log, segments=segments)) == []


def test_a_follower_joins_that_truncates_at_the_local_log_of_its_leader() -> None:
    """It may have forgotten the producers of the common records, but it must not fetch one state of the tier
    after the other."""
    with World(8) as world:
        replicas = TieredReplicas(world)
        world.run(truncation_at_local_log_of_leader(replicas))
        assert world.errors() == []
        assert replicas.log(A).truncation_count <= 2


def test_a_diverging_segment_in_the_tier_is_not_read() -> None:
    assert play(6, diverged_tier) == []


# -- inserted defects -------------------------------------------------------------------------------------


def epochs_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A follower does not take over the leader epochs of the records in the tier."""

    async def forgetful(*arguments: Any) -> AuxiliaryState:
        return (await fetch_auxiliary_state(*arguments))._replace(leader_epochs=())

    patch.setattr(remote_reads, "fetch_auxiliary_state", forgetful)


def producers_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A follower does not take over the producers of the records in the tier."""

    async def forgetful(*arguments: Any) -> AuxiliaryState:
        return (await fetch_auxiliary_state(*arguments))._replace(producers=())

    patch.setattr(remote_reads, "fetch_auxiliary_state", forgetful)


def log_kept(patch: pytest.MonkeyPatch) -> None:
    """A follower keeps its local log when it continues after the records in the tier."""
    begin = Truncation.begin_behind_remote

    async def keep(self: Truncation, state: AuxiliaryState) -> None:
        segments = self._state.segments
        if not segments.end_offset:
            await begin(self, state)
            return
        segments.roll(state.offset)
        segments.end_offset = state.offset
        self._state.epochs.replace(state.leader_epochs, 0)
        self._state.epochs.cut(state.offset)

    patch.setattr(Truncation, "begin_behind_remote", keep)


def lineage_ignored(choose: Callable[..., RemoteLogSegmentMetadata], patch: pytest.MonkeyPatch) -> None:
    """A reader takes any remote segment that contains the offset: the oldest or the newest one."""

    def any_segment(
        metadata: RemoteLogMetadataManager, wanted: RemoteRange, offset: int
    ) -> RemoteLogSegmentMetadata:
        found = [
            each
            for each in metadata.list_remote_log_segments(wanted.partition)
            if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            and each.start_offset <= offset <= each.end_offset
        ]
        return choose(found, key=lambda each: each.event_timestamp_ms)

    patch.setattr(reader, "segment_at", any_segment)


oldest_segment_read = partial(lineage_ignored, min)
newest_segment_read = partial(lineage_ignored, max)


def end_of_epoch_ignored(patch: pytest.MonkeyPatch) -> None:
    """A reader takes the right remote segment, but reads it beyond the end of the epoch."""

    def bound(self: RemoteRange, _offset: int, segment: RemoteLogSegmentMetadata) -> int:
        return min(self.end_offset, segment.end_offset + 1)

    patch.setattr(RemoteRange, "bound_at", bound)


def divergence_ignored(patch: pytest.MonkeyPatch) -> None:
    """A leader does not compare the epoch of a reader's last record with its own log."""
    patch.setattr(local_reads, "diverging_epoch", lambda *_: None)


DEFECTS = {
    "epochs of a new follower": (epochs_forgotten, 1, partial(new_follower, wiped=False), "epochs ("),
    "producers of a new follower": (
        producers_forgotten,
        1,
        partial(new_follower, wiped=False),
        "was stored again",
    ),
    "epochs of a late follower": (epochs_forgotten, 3, follower_out_of_reach, "epochs ("),
    "log of a late follower": (log_kept, 3, follower_out_of_reach, "3: 3 (2), 9: 9 (6)"),
    "segment with lost records": (oldest_segment_read, 4, hard_failures, "is read at offset 1"),
    "end of an epoch": (end_of_epoch_ignored, 4, hard_failures, "reads 0: 0 (0), 1: 1 (0)"),
    "segment of the predecessor": (oldest_segment_read, 5, unclean_election, "is read at offset 1"),
    "divergence": (divergence_ignored, 5, unclean_election, "diverges at"),
    "diverging segment": (newest_segment_read, 6, diverged_tier, "is read at offset 2"),
}
"""Each defect with a seed, a story that detects it, and a part of the violation."""


@pytest.mark.parametrize(("defect", "seed", "story", "violation"), DEFECTS.values(), ids=DEFECTS.keys())
def test_a_defect_is_caught(
    defect: Callable[[pytest.MonkeyPatch], None],
    seed: int,
    story: Any,
    violation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defect(monkeypatch)
    found = play(seed, story)
    assert any(violation in each for each in found), found
