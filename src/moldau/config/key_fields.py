"""Fields of a settings class that name the configuration key of their value. Pure.

A key that only one settings class uses is written in two places: in its row in ``config/keys/``, and in a
field of the settings class. For example::

    segment_bytes: int = from_key("segment.bytes", 1024**3)

Then ``LogConfig(**values_of(LogConfig, topic))`` makes the settings of a topic's logs from the configuration
``topic``.
"""

from collections.abc import Callable
from dataclasses import field, fields
from functools import cache
from typing import Any, Final, NamedTuple

from moldau.config.definition import ParsedValue
from moldau.config.settings import Settings

_METADATA: Final = "key"


class KeyField(NamedTuple):
    """The configuration key from which a field gets its value."""

    key: str
    convert: Callable[[Any], Any] | None
    """Converts the value of the key to the type of the field. ``None`` means that no conversion is needed."""

    def value(self, found: ParsedValue) -> Any:
        """Return the value of the field for a value of the key."""
        return found if self.convert is None else self.convert(found)


def from_key(key: str, default: Any, convert: Callable[[Any], Any] | None = None) -> Any:
    """Declare a field of a dataclass. The field gets its value from the configuration key ``key``.
    ``default`` is the value in objects that are not made from a configuration."""
    return field(default=default, metadata={_METADATA: KeyField(key, convert)})


@cache
def key_fields(settings_class: type) -> dict[str, KeyField]:
    """Return the fields of the class that are declared by :func:`from_key`, by the field's name."""
    return {
        each.name: each.metadata[_METADATA] for each in fields(settings_class) if _METADATA in each.metadata
    }


def values_of(settings_class: type, settings: Settings) -> dict[str, Any]:
    """Read, from the configuration, the values of the fields that :func:`from_key` declares. The result can
    be passed as keyword arguments to ``settings_class``.
    """
    return {name: each.value(settings[each.key]) for name, each in key_fields(settings_class).items()}
