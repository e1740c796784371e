"""The time index of a segment. For a timestamp, it gives an offset. All records before this offset are
earlier than the timestamp."""

from struct import Struct
from typing import NamedTuple

from moldau.records.batch import NO_TIMESTAMP
from moldau.runtime.files.disk import Disk
from moldau.storage.segments.sparse_index import SparseIndex


class TimeIndexEntry(NamedTuple):
    """An entry of the time index. It means that no record up to ``offset`` has a timestamp above
    ``timestamp_ms``. The offset is the last offset of a batch."""

    timestamp_ms: int
    offset: int


class TimeIndex(SparseIndex):
    """Entries of 12 bytes: a timestamp in ms, and the last offset of its batch relative to the base
    offset."""

    entry = Struct(">qI")
    key_typecode = "q"

    __slots__ = ("base_offset",)

    def __init__(self, disk: Disk, path: str, base_offset: int, max_size_bytes: int) -> None:
        super().__init__(disk, path, max_size_bytes)
        self.base_offset = base_offset

    @property
    def last(self) -> TimeIndexEntry:
        """The latest entry. When there are no entries, it is the timestamp -1 with the base offset."""
        count = len(self)
        if not count:
            return TimeIndexEntry(NO_TIMESTAMP, self.base_offset)
        timestamp_ms, relative = self.at(count - 1)
        return TimeIndexEntry(timestamp_ms, self.base_offset + relative)

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Append an entry if its timestamp is above the timestamp of the last entry. The timestamps of
        entries therefore strictly ascend."""
        keys = self._keys
        if timestamp_ms > (keys[-1] if keys else NO_TIMESTAMP):
            self.add(timestamp_ms, offset - self.base_offset)

    def lookup(self, timestamp_ms: int) -> int:
        """An offset before which all records are earlier than ``timestamp_ms``."""
        index = self.floor(timestamp_ms - 1)
        return self.base_offset + self.at(index)[1] + 1 if index >= 0 else self.base_offset

    def truncate_to(self, offset: int) -> None:
        """Drop the entries for records at or after ``offset``."""
        self.keep(self.floor_value(offset - self.base_offset - 1) + 1)
