"""Typed access to configuration values by name."""

from collections.abc import Mapping
from types import MappingProxyType

from moldau.config.definition import ParsedValue


class Settings:
    """Values by key. Each method names the expected type, so that callers need no casts."""

    def __init__(self, values: Mapping[str, ParsedValue]) -> None:
        self.values = MappingProxyType(dict(values))

    def __getitem__(self, name: str) -> ParsedValue:
        return self.values[name]

    def integer(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int), name
        assert not isinstance(value, bool), name
        return value

    def optional_integer(self, name: str) -> int | None:
        return None if self.values[name] is None else self.integer(name)

    def number(self, name: str) -> float:
        value = self.values[name]
        assert isinstance(value, int | float), name
        return value

    def flag(self, name: str) -> bool:
        value = self.values[name]
        assert isinstance(value, bool), name
        return value

    def text(self, name: str) -> str:
        value = self.values[name]
        assert isinstance(value, str), name
        return value

    def optional_text(self, name: str) -> str | None:
        """The text. It is ``None`` when there is no text or when the text is empty."""
        return None if self.values[name] is None else self.text(name) or None

    def optional_items(self, name: str) -> tuple[str, ...]:
        """The list. It is empty when no list is set."""
        return () if self.values[name] is None else self.items(name)

    def items(self, name: str) -> tuple[str, ...]:
        value = self.values[name]
        assert isinstance(value, tuple), name
        return value
