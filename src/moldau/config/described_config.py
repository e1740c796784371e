"""An effective value with its source and its synonyms, as DescribeConfigs shows them. Only this module
decides which values are hidden."""

from dataclasses import dataclass

from moldau.config.definition import ConfigKey, ConfigSource, ParsedValue


def is_secret(key: ConfigKey | None) -> bool:
    """Whether the values of a key are hidden. ``None`` means that the key has no definition. Its value may be
    a password, so it is hidden, as in Kafka."""
    return key is None or key.is_sensitive


def shown_value(key: ConfigKey | None, value: ParsedValue) -> str | None:
    """The value as text. It is ``None`` if the value is a secret, or if there is no value."""
    return None if key is None or is_secret(key) else key.format(value)


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One possible source of the value."""

    key: ConfigKey
    value: ParsedValue
    source: ConfigSource

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def text(self) -> str | None:
        """The value as text. It is ``None`` if the value is a secret, or if there is no value."""
        return shown_value(self.key, self.value)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """The effective value of a key, its source, and all possible sources of the value (``synonyms``). The
    most specific source comes first.
    """

    key: ConfigKey
    value: ParsedValue
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]
    is_read_only: bool

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def text(self) -> str | None:
        """The value as text. It is ``None`` if the value is a secret, or if there is no value."""
        return shown_value(self.key, self.value)

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT
