"""Structs with fixed fields around a name."""

from struct import Struct
from typing import Final

NAME_BYTES_MAX: Final = 126
"""Maximum size of a name. In flexible versions, the size of a longer name takes two bytes."""


class StructsByNameSize(dict[int, Struct]):
    """Structs that contain a name. The key of a struct in this dict is the size of the name in bytes."""

    def __init__(self, before: str, after: str) -> None:
        """``before`` and ``after`` are the formats of the fields before and after the name."""
        self._before, self._after = before, after

    def __missing__(self, size: int) -> Struct:
        if not 0 <= size <= NAME_BYTES_MAX:
            raise IndexError("a null name, or one whose size takes two bytes")
        found = self[size] = Struct(f"{self._before}{size}s{self._after}")
        return found
