"""The leader epochs of an open log. They are in memory, and in a file that is updated a little later."""

from collections.abc import Callable, Iterable

from moldau.records.batch import HEADER_SIZE_BYTES, BatchHeader, parse_header
from moldau.runtime import Disk
from moldau.storage.critical_logs.recovery_report import RecoveryReport, Repair, RepairKind
from moldau.storage.folders.checkpoint import CheckpointError
from moldau.storage.folders.file_names import LEADER_EPOCHS
from moldau.storage.log.files.leader_epoch_file import LeaderEpochFile, SavedEpochs
from moldau.storage.log.leader_epochs import EpochEntry, LeaderEpochs
from moldau.storage.log.segmented_log import SegmentedLog
from moldau.storage.segments.batch_scan import scan


class LogEpochs:
    """Owns the epochs of one log, their file, and the content that must be written to the file.

    The event loop gives each change a version. Any thread may write the changes. If the log is only a cache,
    its epochs are not written to the file. If the epochs were lost, no epochs are written until
    :meth:`restore` or :meth:`replace` has been called.
    """

    def __init__(self, disk: Disk, segments: SegmentedLog, report: RecoveryReport) -> None:
        """Load the file. If it is unreadable, it is removed, and the epochs are then read from the log's
        batches. This call blocks."""
        self._segments = segments
        self._file = LeaderEpochFile(disk, f"{segments.folder}/{LEADER_EPOCHS}")
        self._is_unreadable = False
        try:
            entries = self._file.load()
        except CheckpointError as error:
            reason = f"is created again, because line {error.line} cannot be read: {error.reason}"
            report.add(Repair(RepairKind.REBUILT, self._file.path, reason))
            disk.remove(self._file.path)
            self._is_unreadable = True
            entries = LeaderEpochs()
        self.entries = entries
        self.current = -1
        """The latest epoch that has begun; -1 when there is none."""
        self.start_offset_at_open = 0
        """The start of the first epoch in the file when the log was opened; 0 when there was none."""
        self.are_lost = False
        """Whether the epochs were lost. The lost file may have contained epochs of the remote part. Therefore
        rebuilt epochs are not written before the epochs of the remote part are known."""
        self.on_change: Callable[[], None] | None = None
        """Called when the file is out of date, so that :meth:`to_save` must be written."""
        self._noted = entries.entries
        self._version = 0

    def opened(self, log_start_offset: int) -> int:
        """Determine the start of the log after its segments are opened, and remove epochs before this start.
        This call blocks.

        ``log_start_offset`` is the checkpointed start. When the log's start moves, earlier epochs are
        removed, and the file of epochs is written before the checkpoint. Therefore the epochs are more
        reliable than the checkpoint, which may be older or lost. Without a remote tier, the first epoch may
        also begin after the start of the log, because there may be gaps between offsets. Lost epochs are read
        from the batches.
        """
        entries, end_offset = self.entries, self._segments.end_offset
        earliest = entries.earliest
        if earliest is not None:
            self.start_offset_at_open = min(earliest.start_offset, end_offset)
        first_offset = self._segments.segments[0].base_offset
        log_start_offset = max(log_start_offset, min(self.start_offset_at_open, first_offset))
        self._noted = entries.entries
        entries.truncate_from_end(end_offset)
        if earliest is not None and not len(entries):
            # All records were deleted. It is possible that only the file of leader epochs contains the start
            # of the log. Therefore the start must stay in this file.
            entries.assign(earliest.epoch, end_offset)
        entries.truncate_from_start(log_start_offset)
        if not self._noted and end_offset:
            self.are_lost = True
            if self._is_unreadable:
                self._learn_all()
            else:
                self._learn_first()
        return log_start_offset

    def _learn_first(self) -> None:
        """Use the epoch of the first batch for the start of the log, because the epochs were lost."""
        segment = self._segments.segments[0]
        if segment.size_bytes:
            header = parse_header(segment.file.read_at(0, HEADER_SIZE_BYTES))
            if header.partition_leader_epoch >= 0:
                self.entries.assign(header.partition_leader_epoch, segment.base_offset)

    def _learn_all(self) -> None:
        for segment in self._segments.segments:
            for sketch in scan(segment.file, 0, segment.size_bytes):
                self.learn(parse_header(segment.file.read_at(sketch.position, HEADER_SIZE_BYTES)))

    def learn(self, header: BatchHeader) -> None:
        """Add the epoch of a stored batch, if the epoch is new."""
        if header.partition_leader_epoch > self._latest:
            self.entries.assign(header.partition_leader_epoch, header.base_offset)

    @property
    def _latest(self) -> int:
        epoch = self.entries.latest_epoch
        return -1 if epoch is None else epoch

    # -- changes ------------------------------------------------------------------------------

    def begin(self, epoch: int, start_offset: int) -> None:
        """Begin an epoch. The epoch is written to the file before its first batch is durable. Until then it
        is only in its batches."""
        if epoch > self._latest:
            self.entries.assign(epoch, start_offset)
        self._note()
        if self.on_change is not None:
            self.on_change()
        self.current = epoch

    def move_start(self, offset: int) -> None:
        """Make the log begin at ``offset``. The owner of the log saves the change. If there is no owner, the
        caller saves it."""
        self.entries.truncate_from_start(offset)
        self._announce()

    def cut(self, end_offset: int) -> None:
        """Drop the epochs after a truncation of the log to ``end_offset``. The caller saves the change."""
        self.entries.truncate_from_end(end_offset)
        self._note()
        self.current = self._latest

    def clear(self) -> None:
        """Drop all epochs, because the log is empty now. The caller saves the change."""
        self.entries.clear()

    def replace(self, entries: Iterable[EpochEntry], start_offset: int) -> None:
        """Replace all epochs by the epochs of the remote tier, because the local log begins again after the
        offsets in the remote tier. The caller saves the change."""
        self.entries.clear()
        for entry in entries:
            self.entries.assign(entry.epoch, entry.start_offset)
        self.entries.truncate_from_start(start_offset)
        self.are_lost = False

    def restore(self, entries: Iterable[EpochEntry], start_offset: int) -> None:
        """Insert the lost epochs before the known epochs. The lost epochs have just been found. This call may
        write the file, which blocks."""
        self.are_lost = False
        self.entries.extend_back(entries)
        self.entries.truncate_from_start(start_offset)
        self._note()
        if self.on_change is None:
            self.save()
        elif not self.is_saved:
            self.on_change()

    def forget_empty(self, end_offset: int) -> None:
        """Drop the epochs without records, because a new leader may have records of earlier epochs."""
        entries = self.entries
        if not entries.truncate_from_end(end_offset):
            return
        if not len(entries) and end_offset:
            # If all records of a log were deleted, only this file contains the log's start.
            entries.assign(0, end_offset)
        self.current = self._latest
        # It does no harm if the file is written later, because each opening of the log drops the epochs
        # without records again.
        self._announce()

    # -- the file -----------------------------------------------------------------------------

    def _note(self) -> None:
        if self.are_lost or self._segments.config.is_cache:
            return
        entries = self.entries.entries
        if entries != self._noted:
            # The entries are stored before the version is increased. A worker reads in the other order, so it
            # never writes old entries with a new version.
            self._noted = entries
            self._version += 1

    def _announce(self) -> None:
        self._note()
        if self.on_change is not None and not self.is_saved:
            self.on_change()

    @property
    def is_saved(self) -> bool:
        """Whether the file contains the latest change."""
        return self._file.saved_version >= self._version

    def to_save(self) -> SavedEpochs:
        """The epochs to write, with their version. Thread-safe."""
        version = self._version
        return SavedEpochs(self._file, self._noted, version)

    def save(self) -> None:
        """Update the file durably. This call blocks. Any thread may call this method."""
        _, entries, version = self.to_save()
        self._file.save(entries, version)

    def save_loaded(self) -> None:
        """Write the current epochs after the log was opened. This call blocks."""
        self._note()
        self.save()
        self.current = self._latest

    def end_file(self) -> None:
        """End writes to the file, because the folder will be renamed. This call blocks."""
        self._file.end()
