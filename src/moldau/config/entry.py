"""An effective value with its source, as DescribeConfigs shows it."""

from dataclasses import dataclass

from moldau.config.definition import ConfigKey, ConfigSource, Value


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One possible source of the value. ``value`` is ``None`` if the value is a secret."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """The effective value, its source, and the values that it replaces. The most specific value comes
    first."""

    key: ConfigKey
    value: Value
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]
    is_read_only: bool

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def text(self) -> str | None:
        """The value as text. It is ``None`` if the value is a secret, or if there is no value."""
        return None if self.key.is_sensitive else self.key.format(self.value)

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT
