"""The definition of a configuration key: type, default, bounds and update mode.

Error texts have the form that users of Kafka know:
``Invalid value x for configuration num.partitions: Not a number of type INT``.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, Flag, IntEnum, auto
from typing import Final, NamedTuple, TypeAlias, assert_never

ParsedValue: TypeAlias = "bool | int | float | str | tuple[str, ...] | None"
Validator: TypeAlias = Callable[[ParsedValue], "str | None"]


_MESSAGE_MAX: Final = 400


class ConfigError(ValueError):
    """A configuration that cannot be used. ``key`` names the wrong property.

    The message is one line of limited length, even if it quotes a long value.
    """

    def __init__(self, key: str, message: str) -> None:
        line = "".join(one if one.isprintable() else repr(one)[1:-1] for one in message)
        if len(line) > _MESSAGE_MAX:
            # Keep the end of the message, because it contains the reason.
            line = f"{line[: _MESSAGE_MAX // 2]} … {line[-_MESSAGE_MAX // 2 :]}"
        super().__init__(line)
        self.key = key
        self.message = line


class ConfigType(IntEnum):
    """Types, with their numbers in DescribeConfigs responses (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """The source of a value, with its number in DescribeConfigs responses."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    DYNAMIC_CLIENT_METRICS = 7
    DYNAMIC_GROUP = 8


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Update(Enum):
    """The update mode of a key (KIP-226). It determines whether the key can be changed while nodes run. It
    also determines whether a change is possible only for one broker, or also for the cluster's default."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Limit(Flag):
    """Limits for dynamic changes of a key. They do not apply to the values in a node's file.

    Kafka has these limits, too. Without them, a single request could make a node unusable.
    """

    NONE = 0
    AT_LEAST_ONE = auto()
    """The value must be at least 1."""
    IN_STEPS = auto()
    """The new value must be at least half, and at most twice, the present value."""
    BY_LISTENER_ONLY = auto()
    """The key can be changed only with the prefix of a listener."""
    SAME_FOR_LISTENERS = auto()
    """If the key has the prefix of a listener, it can also be changed as the cluster's default."""


class Synonym(NamedTuple):
    """A broker config that is the default of a topic's config. ``factor`` converts the unit of the broker
    config to the unit of the topic's config. ``low`` is the minimum of the converted value."""

    name: str
    factor: int = 1
    low: int | None = None

    def convert(self, value: ParsedValue) -> ParsedValue:
        """The value in the topic's unit. Negative values are not converted. The result is at least
        ``low``."""
        if isinstance(value, bool) or not isinstance(value, int):
            return value
        converted = value * self.factor if value >= 0 else value
        return converted if self.low is None else max(self.low, converted)


_TRIMMED = "".join(map(chr, range(33)))
"""Characters that Java's ``String.trim`` removes."""
_DECIMAL_DOUBLE = re.compile(r"[+-]?(?:Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_HEXADECIMAL_DOUBLE = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?"
)
"""Hexadecimal numbers as Java's ``Double.parseDouble`` reads them."""
_INT_BOUNDS = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), 2**31 - 1),
    ConfigType.LONG: (-(2**63), 2**63 - 1),
}


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One property. ``doc`` is one or more sentences in Markdown. ``valid`` describes the bounds."""

    name: str
    type: ConfigType
    default: ParsedValue
    doc: str
    importance: Importance = Importance.MEDIUM
    validator: Validator | None = None
    valid: str = ""
    update: Update = Update.READ_ONLY
    has_effect: bool = True  # If False, the key is accepted but has no effect. The doc gives the reason.
    limits: Limit = Limit.NONE
    synonyms: tuple[Synonym, ...] = ()
    """The broker configs that are the default of a topic's config. The first broker config that is set
    applies. If no such config is set, the first config with a default applies."""
    fixed_at_creation: bool = False
    """Whether a new topic copies the broker's value. If so, and the key is later removed from the topic, the
    default of the key applies. This field is for topic configs only."""

    @property
    def is_sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> ParsedValue:
        """The typed value of ``text``. Raises :class:`ConfigError`."""
        value = self._convert(text.strip(_TRIMMED))
        self.check(value)
        return value

    def check(self, value: ParsedValue) -> None:
        """Raise :class:`ConfigError` when the validator refuses the value."""
        if self.validator is not None and value is not None:
            reason = self.validator(value)
            if reason is not None:
                raise self.error(self.format(value), reason)

    def error(self, value: object, reason: str) -> ConfigError:
        shown = "[hidden]" if self.is_sensitive else value
        return ConfigError(self.name, f"Invalid value {shown} for configuration {self.name}: {reason}")

    def _convert(self, text: str) -> ParsedValue:
        kind = self.type
        match kind:
            case ConfigType.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise self.error(text, "Expected value to be either true or false")
                return text.lower() == "true"
            case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
                return self._convert_integer(text)
            case ConfigType.DOUBLE:
                return self._convert_double(text)
            case ConfigType.LIST:
                return tuple(part.strip() for part in text.split(",")) if text else ()
            case ConfigType.STRING | ConfigType.CLASS | ConfigType.PASSWORD:
                return text
            case _:
                assert_never(kind)

    def _convert_integer(self, text: str) -> int:
        low, high = _INT_BOUNDS[self.type]
        digits = text[1:] if text[:1] in ("-", "+") else text
        if digits.isdecimal() and low <= int(text) <= high:
            return int(text)
        raise self.error(text, f"Not a number of type {self.type.name}")

    def _convert_double(self, text: str) -> float:
        if _HEXADECIMAL_DOUBLE.fullmatch(text):
            return float.fromhex(text.rstrip("fFdD"))
        if _DECIMAL_DOUBLE.fullmatch(text):
            return float(text.rstrip("fFdD"))
        # NaN is refused. Kafka accepts it, because NaN is not below and not above any limit.
        raise self.error(text, "Not a number of type DOUBLE")

    def format(self, value: ParsedValue) -> str | None:
        """Return the value as text, as Kafka's tools show it; ``None`` for no value."""
        match value:
            case None:
                return None
            case bool():
                return "true" if value else "false"
            case float():
                return _java_double(value)
            case tuple():
                return ",".join(value)
            case _:
                return str(value)


def _java_double(value: float) -> str:
    """Return the text of a number as Java's ``Double.toString`` writes it, for the numbers that occur in
    configs."""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    text = repr(value)
    if "e" in text:
        mantissa, _, exponent = text.partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"
    return text


class ConfigDef:
    """A set of keys. It parses properties, and names the keys that are unknown or wrong."""

    def __init__(self, keys: Iterable[ConfigKey], passed_on_prefixes: tuple[str, ...] = ()) -> None:
        self._keys: dict[str, ConfigKey] = {}
        self._prefixes = passed_on_prefixes
        for key in keys:
            if key.name in self._keys:
                raise ValueError(f"{key.name} is defined twice")
            key.check(key.default)
            self._keys[key.name] = key

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __getitem__(self, name: str) -> ConfigKey:
        return self._keys[name]

    def get(self, name: str) -> ConfigKey | None:
        return self._keys.get(name)

    @property
    def names(self) -> list[str]:
        return list(self._keys)

    def is_passed_on(self, name: str) -> bool:
        """Whether this class leaves the check of the key to a plug-in. The prefix of the key decides this,
        for example ``rsm.config.``."""
        return name.startswith(self._prefixes) if self._prefixes else False

    def parse(self, values: Mapping[str, str], passed_on: tuple[str, ...] = ()) -> dict[str, ParsedValue]:
        """Typed values of the given keys (no defaults). Raises :class:`ConfigError` for the first invalid
        key.

        ``passed_on`` contains additional prefixes of keys that belong to plug-ins.
        """
        typed: dict[str, ParsedValue] = {}
        for name, text in values.items():
            key = self._keys.get(name)
            if key is None:
                if self.is_passed_on(name) or (passed_on and name.startswith(passed_on)):
                    typed[name] = text
                    continue
                raise self.unknown(name)
            typed[name] = key.parse(text)
        return typed

    def usable(self, values: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the valid values, and the reason for each refused key.

        An older version, or another member of the cluster, may have accepted a value that this version
        refuses.
        """
        good: dict[str, str] = {}
        bad: dict[str, str] = {}
        for name, text in values.items():
            try:
                self.parse({name: text})
            except ConfigError as error:
                bad[name] = error.message
            else:
                good[name] = text
        return good, bad

    def unknown(self, name: str) -> ConfigError:
        """The error for an undefined key. It suggests the most similar defined key."""
        closest = difflib.get_close_matches(name, self._keys, n=1, cutoff=0.75)
        hint = f" Did you mean {closest[0]}?" if closest else ""
        return ConfigError(name, f"Unknown configuration {name}.{hint}")
