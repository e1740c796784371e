"""The configuration of a group. The group's own values replace the broker's defaults, within the broker's
limits.

These configs apply to groups of the consumer, share and streams protocols. Members of a classic group send
their own values.
"""

from collections.abc import Mapping

from moldau.config.broker import BROKER, BrokerConfig
from moldau.config.definition import ConfigDef, ConfigError, ConfigSource
from moldau.config.described_config import ConfigEntry, ConfigSynonym
from moldau.config.keys.groups import GROUP as _KEYS
from moldau.config.settings import Settings

GROUP = ConfigDef(_KEYS)

_KINDS = ("consumer", "share", "streams")


class GroupConfig(Settings):
    """The effective values for one group. It is immutable."""

    def __init__(self, broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
        self.overrides = dict(overrides)
        inherited = {
            key.name: broker[f"group.{key.name}"] if f"group.{key.name}" in BROKER else key.default
            for key in GROUP
        }
        super().__init__({**inherited, **GROUP.parse(overrides)})

    @staticmethod
    def validate(overrides: Mapping[str, str], broker: BrokerConfig) -> None:
        """Check a group's overrides. Raises :class:`ConfigError`."""
        for name in overrides:
            if name not in GROUP:
                raise ConfigError(name, f"Unknown group config name: {name}")
        config = GroupConfig(broker, overrides)
        for key in GROUP:
            _check_bounds(config, broker, key.name)
        for kind in _KINDS:
            session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            if config.integer(session) <= config.integer(heartbeat):
                raise ConfigError(session, f"{session} must be greater than {heartbeat}")

    def describe(self) -> list[ConfigEntry]:
        """Every key with value and source, by name."""
        return [self._entry(key.name) for key in sorted(GROUP, key=lambda key: key.name)]

    def _entry(self, name: str) -> ConfigEntry:
        # As in Kafka, a value from the broker's own config is shown as a default, without its real source.
        source = ConfigSource.DYNAMIC_GROUP if name in self.overrides else ConfigSource.DEFAULT
        key = GROUP[name]
        synonym = ConfigSynonym(key, self[name], source)
        return ConfigEntry(key, self[name], source, (synonym,), False)


def _check_bounds(config: GroupConfig, broker: BrokerConfig, name: str) -> None:
    kind, _, rest = name.partition(".")
    for word, is_outside in (("min", int.__lt__), ("max", int.__gt__)):
        bound = f"group.{kind}.{word}.{rest.removeprefix('num.')}"
        if bound in BROKER and is_outside(config.integer(name), broker.integer(bound)):
            relation = "greater" if word == "min" else "less"
            raise ConfigError(name, f"{name} must be {relation} than or equal to {bound}")
