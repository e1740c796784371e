"""The type of bytes that are read and not changed."""

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
