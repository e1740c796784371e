"""The offset index of a segment. For an offset, it gives the position at which a search must begin."""

from struct import Struct

from moldau.runtime.files.disk import Disk
from moldau.storage.segments.sparse_index import SparseIndex


class OffsetIndex(SparseIndex):
    """Entries of 8 bytes. An entry has the last offset of a batch, relative to the segment's base offset, and
    the batch's position."""

    entry = Struct(">II")
    key_typecode = "I"

    __slots__ = ("base_offset",)

    def __init__(self, disk: Disk, path: str, base_offset: int, max_size_bytes: int) -> None:
        super().__init__(disk, path, max_size_bytes)
        self.base_offset = base_offset

    def append(self, last_offset: int, position: int) -> None:
        """Add an entry for the batch at ``position``, whose last offset is ``last_offset``."""
        self.add(last_offset - self.base_offset, position)

    def lookup(self, offset: int) -> int:
        """Return the position of the batch that contains ``offset``, or a position shortly before it."""
        index = self.floor(offset - self.base_offset)
        return self.at(index)[1] if index >= 0 else 0

    def boundary_before(self, position: int) -> int:
        """Return the last indexed position, at or before ``position``, at which a batch starts. The result is
        0 when there is no such position."""
        index = self.floor_value(position)
        return self.at(index)[1] if index >= 0 else 0

    def truncate_to(self, position: int) -> None:
        """Drop the entries of batches that are at or after ``position``."""
        self.keep(self.floor_value(position - 1) + 1)
