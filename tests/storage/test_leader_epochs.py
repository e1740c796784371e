"""The leader epoch cache, compared with a log in which every record has its own epoch."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.runtime import LocalDisk
from moldau.storage.folders.checkpoint import CheckpointError
from moldau.storage.log.files.leader_epoch_file import LeaderEpochFile
from moldau.storage.log.leader_epochs import EpochEntry, LeaderEpochs

# Groups of records. Each group is a pair: the difference from the previous epoch, and the number of records.
RUNS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), max_size=8)


def log_of(runs: list[tuple[int, int]]) -> tuple[LeaderEpochs, list[int]]:
    """Make a cache of leader epochs. Returns the cache, and the epoch of each offset."""
    epochs, log, epoch = LeaderEpochs(), list[int](), -1
    for step, count in runs:
        epoch += step
        assert epochs.assign(epoch, len(log))
        log += [epoch] * count
    return epochs, log


@given(RUNS)
def test_each_offset_has_its_epoch(runs: list[tuple[int, int]]) -> None:
    epochs, log = log_of(runs)
    assert [epochs.epoch_for_offset(offset) for offset in range(len(log))] == log


@given(RUNS, st.integers(0, 30))
def test_the_end_of_an_epoch_is_the_offset_after_its_last_record(
    runs: list[tuple[int, int]], epoch: int
) -> None:
    epochs, log = log_of(runs)
    answer = epochs.end_offset_for(epoch, len(log))
    if not log or epoch > log[-1]:
        assert answer == (-1, -1)
    elif epoch < log[0]:
        assert answer == (epoch, 0)
    else:
        assert answer.epoch == max(known for known in log if known <= epoch)
        assert answer.end_offset == sum(known <= epoch for known in log)


@given(RUNS, st.integers(0, 40), st.integers(0, 40))
def test_truncation_keeps_what_the_log_keeps(runs: list[tuple[int, int]], start: int, end: int) -> None:
    epochs, log = log_of(runs)
    end = min(end, len(log))
    start = min(start, end)
    before = epochs.entries
    assert epochs.truncate_from_end(end) == (epochs.entries != before)
    before = epochs.entries
    assert epochs.truncate_from_start(start) == (epochs.entries != before)
    for offset in range(start, end):
        assert epochs.epoch_for_offset(offset) == log[offset]
    if start < end:
        assert epochs.earliest == (log[start], start)
        assert epochs.latest_epoch == log[end - 1]


@given(RUNS)
def test_a_range_lists_its_own_epochs(runs: list[tuple[int, int]]) -> None:
    epochs, log = log_of(runs)
    for start in range(len(log)):
        listed = epochs.in_range(start, start + 4)
        part = log[start : start + 4]
        assert [entry.epoch for entry in listed] == sorted(set(part))
        assert listed[0].start_offset == start


def test_a_repeat_of_the_latest_epoch_changes_nothing() -> None:
    epochs = LeaderEpochs()
    assert epochs.assign(3, 10)
    assert not epochs.assign(3, 10)
    assert not epochs.assign(3, 12)
    assert epochs.assign(3, 8)
    assert epochs.entries == ((3, 8),)


def test_entries_that_contradict_a_new_entry_are_removed() -> None:
    epochs = LeaderEpochs([EpochEntry(1, 0), EpochEntry(2, 10), EpochEntry(5, 20)])
    assert epochs.assign(6, 10)
    assert epochs.entries == ((1, 0), (6, 10))
    assert epochs.assign(4, 30)
    assert epochs.entries == ((1, 0), (4, 30))


def test_the_next_epoch_and_an_unknown_epoch_are_looked_up() -> None:
    epochs = LeaderEpochs([EpochEntry(1, 0), EpochEntry(4, 10)])
    assert [epochs.following(epoch) for epoch in (0, 1, 4)] == [(1, 0), (4, 10), None]
    assert epochs.end_offset_for(-1, 99) == (-1, -1)


def test_negative_epochs_are_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        LeaderEpochs().assign(-1, 0)
    with pytest.raises(ValueError, match="-1"):
        LeaderEpochs().assign(0, -1)


@given(RUNS)
def test_the_file_gives_back_what_was_saved(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int]]
) -> None:
    epochs, _ = log_of(runs)
    file = LeaderEpochFile(LocalDisk(), str(tmp_path_factory.getbasetemp() / "leader-epoch-checkpoint"))
    file.save(epochs.entries, 1)
    assert file.load().entries == epochs.entries


def test_the_file_is_kafkas(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    file = LeaderEpochFile(LocalDisk(), str(path))
    assert file.load().entries == ()
    file.save([EpochEntry(0, 0), EpochEntry(7, 120)], 1)
    assert path.read_text() == "0\n2\n0 0\n7 120\n"


def test_a_malformed_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n2\n0 0\n7 x\n")
    with pytest.raises(CheckpointError, match=r"leader-epoch-checkpoint, line 4: 'x' is not a number"):
        LeaderEpochFile(LocalDisk(), str(path)).load()
