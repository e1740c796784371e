"""The configuration of a topic. The topic's own overrides replace the broker's defaults."""

from collections.abc import Iterable, Mapping

from moldau.config.broker import BROKER, BrokerConfig
from moldau.config.definition import ConfigDef, ConfigError, ConfigSource, ParsedValue
from moldau.config.described_config import ConfigEntry, ConfigSynonym
from moldau.config.keys.topic import TOPIC as _KEYS
from moldau.config.settings import Settings

TOPIC = ConfigDef(_KEYS)


class TopicConfig(Settings):
    """The effective values for one topic. It is immutable."""

    def __init__(self, broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
        self.broker = broker
        self.overrides = dict(overrides)
        typed = TOPIC.parse(overrides)
        super().__init__({key.name: typed.get(key.name, _inherited(broker, key.name)[0]) for key in TOPIC})

    @classmethod
    def effective(cls, broker: BrokerConfig, overrides: Mapping[str, str]) -> "TopicConfig":
        """Check the overrides. Raises :class:`ConfigError` for an unknown key or an invalid value.

        ``broker`` contains the dynamic defaults (:meth:`BrokerConfig.with_dynamic`).
        """
        return cls(broker, overrides)

    @staticmethod
    def validate(overrides: Mapping[str, str | None], broker: BrokerConfig) -> "TopicConfig":
        """Check the overrides of a topic, and return its effective config. Raises :class:`ConfigError`."""
        given: dict[str, str] = {}
        for name, value in overrides.items():
            if name not in TOPIC:
                # Kafka's text for an unknown key of a topic. At the start of a node, the error for an unknown
                # key has another text.
                raise ConfigError(name, f"Unknown topic config name: {name}")
            if value is None:
                raise ConfigError(name, f"Null value not supported for topic configs: {name}")
            given[name] = value
        config = TopicConfig(broker, given)
        _check_combinations(config)
        return config

    def describe(self, names: Iterable[str] | None = None) -> list[ConfigEntry]:
        """Entries for DescribeConfigs, by name. Unknown names are skipped."""
        wanted = sorted(key.name for key in TOPIC) if names is None else [n for n in names if n in TOPIC]
        return [self.entry(name) for name in wanted]

    def entry(self, name: str) -> ConfigEntry:
        """Describe one key: its value, its source and its synonyms."""
        key = TOPIC[name]
        inherited, source = _inherited(self.broker, name)
        synonyms: list[ConfigSynonym] = []
        if name in self.overrides:
            source = ConfigSource.DYNAMIC_TOPIC
            synonyms.append(ConfigSynonym(key, self[name], source))
        for synonym in () if key.fixed_at_creation else key.synonyms:
            for value, origin in self.broker.layers_of(synonym.name):
                synonyms.append(ConfigSynonym(BROKER[synonym.name], value, origin))
        return ConfigEntry(
            key, self[name] if name in self.overrides else inherited, source, tuple(synonyms), False
        )

    @staticmethod
    def default_of_new(broker: BrokerConfig, name: str) -> str | None:
        """Return the value that a new topic gets for a key that its request does not set."""
        return TOPIC[name].format(_from_broker(broker, name)[0])

    # Frequently read values.

    @property
    def is_diskless(self) -> bool:
        return self.flag("diskless.enable")

    @property
    def is_tiered(self) -> bool:
        return self.flag("remote.storage.enable")

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.items("cleanup.policy")

    @property
    def deletes(self) -> bool:
        return "delete" in self.items("cleanup.policy")

    @property
    def retention_ms(self) -> int:
        return self.integer("retention.ms")

    @property
    def retention_bytes(self) -> int:
        return self.integer("retention.bytes")

    @property
    def local_retention_ms(self) -> int:
        """The local retention in ms. The value -2 is replaced by the retention of the whole log."""
        value = self.integer("local.retention.ms")
        return self.retention_ms if value == -2 else value

    @property
    def local_retention_bytes(self) -> int:
        """The local retention in bytes. The value -2 is replaced by the retention of the whole log."""
        value = self.integer("local.retention.bytes")
        return self.retention_bytes if value == -2 else value

    @property
    def max_message_bytes(self) -> int:
        return self.integer("max.message.bytes")

    @property
    def min_insync_replicas(self) -> int:
        return self.integer("min.insync.replicas")

    @property
    def stamps_at_append(self) -> bool:
        return self.text("message.timestamp.type") == "LogAppendTime"


def _inherited(broker: BrokerConfig, name: str) -> tuple[ParsedValue, ConfigSource]:
    """Return the value and source of a key for a topic without an override."""
    if TOPIC[name].fixed_at_creation:
        return TOPIC[name].default, ConfigSource.DEFAULT
    return _from_broker(broker, name)


def _from_broker(broker: BrokerConfig, name: str) -> tuple[ParsedValue, ConfigSource]:
    """Return the first broker config that is set, as value and source. If none is set, return the default."""
    for synonym in TOPIC[name].synonyms:
        explicit = broker.explicit(synonym.name)
        if explicit is not None:
            return synonym.convert(explicit[0]), explicit[1]
    return TOPIC[name].default, ConfigSource.DEFAULT


def _check_combinations(config: TopicConfig) -> None:
    if config.integer("min.compaction.lag.ms") > config.integer("max.compaction.lag.ms"):
        raise ConfigError(
            "min.compaction.lag.ms",
            "conflict topic config setting min.compaction.lag.ms "
            f"({config['min.compaction.lag.ms']}) > max.compaction.lag.ms "
            f"({config['max.compaction.lag.ms']})",
        )
    if config.is_tiered:
        _check_tiered(config)


def _check_tiered(config: TopicConfig) -> None:
    if not config.broker.flag("remote.log.storage.system.enable"):
        raise ConfigError(
            "remote.storage.enable",
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        )
    if config.is_compacted:
        raise ConfigError(
            "remote.storage.enable",
            "Remote log storage only supports topics with cleanup.policy=delete "
            "or cleanup.policy being an empty list.",
        )
    for key, whole in (
        ("local.retention.ms", config.retention_ms),
        ("local.retention.bytes", config.retention_bytes),
    ):
        local = config.integer(key)
        kind = key.removeprefix("local.")
        if config.flag("remote.log.copy.disable") and local not in (-2, whole):
            raise ConfigError(
                key,
                f"When `remote.log.copy.disable` is set to true, the `{key}` and `{kind}` must be set to the "
                "identical value because there will be no more logs copied to the remote storage.",
            )
        if whole != -1 and local == -1:
            raise TOPIC[key].error(local, f"Value must not be -1 as {kind} value is set as {whole}.")
        if whole != -1 and local > whole:
            raise TOPIC[key].error(local, f"Value must not be more than {kind} property value: {whole}")
