"""The configuration of a node. It has layers: defaults, the node's file, the cluster's dynamic defaults, and
the node's own dynamic configs.

``config["log.retention.hours"]`` is the typed effective value. The properties of :class:`BrokerConfig` are
for values that depend on several keys, and for frequently read values.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Final

from moldau.config import dynamic
from moldau.config.definition import ConfigDef, ConfigError, ConfigSource, ParsedValue, Update
from moldau.config.described_config import ConfigEntry, ConfigSynonym
from moldau.config.keys.sections import SECTIONS
from moldau.config.keys.synonyms import BROKER_SYNONYMS
from moldau.config.node_combinations import validate
from moldau.config.node_settings import NodeSettings

BROKER = ConfigDef(
    (key for _, keys in SECTIONS for key in keys),
    passed_on_prefixes=(
        "diskless.batch.coordinator.",
        "diskless.storage.",
        "rsm.config.",
        "rlmm.config.",
        "listener.name.",
        "ssl.",
        "sasl.",
    ),
)

_MAX_CONNECTIONS_OF_LISTENER: Final = re.compile(r"listener\.name\.([^.]+)\.max\.connections")
_PREFIX_KEYS = ("remote.log.storage.manager.impl.prefix", "remote.log.metadata.manager.impl.prefix")

_DEFAULTS: Mapping[str, ParsedValue] = MappingProxyType({key.name: key.default for key in BROKER})
_NOTHING: Mapping[str, str] = MappingProxyType({})


class BrokerConfig(NodeSettings):
    """The configuration of a node. It is immutable, so a dynamic change makes a new configuration."""

    def __init__(
        self,
        static: Mapping[str, str],
        cluster_defaults: Mapping[str, str] = _NOTHING,
        dynamic: Mapping[str, str] = _NOTHING,
    ) -> None:
        self.static = MappingProxyType(dict(static))
        self.cluster_defaults = MappingProxyType(dict(cluster_defaults))
        self.dynamic = MappingProxyType(dict(dynamic))
        self.unusable: dict[str, str] = {}
        self._layers = (
            (ConfigSource.DYNAMIC_BROKER, self._usable(self.dynamic)),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, self._usable(self.cluster_defaults)),
            (ConfigSource.STATIC_BROKER, BROKER.parse(self.static, self._own_prefixes())),
        )
        values = dict(_DEFAULTS)
        for _, layer in reversed(self._layers):
            values.update((name, value) for name, value in layer.items() if name in BROKER)
        super().__init__(values)

    def _usable(self, values: Mapping[str, str]) -> dict[str, ParsedValue]:
        """Parse the dynamic values that this version can use.

        Unusable values stay in the cluster's metadata but must not stop a node. They are skipped and named in
        ``unusable``. Undefined keys are also skipped.
        """
        typed: dict[str, ParsedValue] = {}
        for name, text in values.items():
            if name in BROKER:
                try:
                    typed[name] = dynamic.parse(BROKER[name], text)
                except ConfigError as error:
                    self.unusable[name] = error.message
        return typed

    def _own_prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of the keys for the remote tier's plug-ins, as set in the file. If the file
        sets no prefixes, the defaults (such as ``rsm.config.``) apply, and the result is empty."""
        return tuple(filter(None, (self.static.get(key) for key in _PREFIX_KEYS)))

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], overrides: Mapping[str, str] = _NOTHING
    ) -> "BrokerConfig":
        """Make a configuration from the properties of a node's file. The overrides of the command line
        replace values of the file. All values are checked together.

        Raises :class:`ConfigError`, which names the key and the reason.
        """
        config = cls({**properties, **overrides})
        validate(config)
        _ = config.max_connections_by_listener
        return config

    def with_dynamic(
        self, cluster_defaults: Mapping[str, str], dynamic: Mapping[str, str] = _NOTHING
    ) -> "BrokerConfig":
        """A copy with other dynamic configs. Unusable values are skipped."""
        return BrokerConfig(self.static, cluster_defaults, dynamic)

    def _effective(self, name: str) -> tuple[ParsedValue, ConfigSource]:
        for source, values in self._layers:
            if name in values:
                return values[name], source
        return BROKER[name].default, ConfigSource.DEFAULT

    def explicit(self, name: str) -> tuple[ParsedValue, ConfigSource] | None:
        """Return the value that was set for a key, and the source of the value. The result is ``None`` when
        only the default applies."""
        value, source = self._effective(name)
        return None if source is ConfigSource.DEFAULT else (value, source)

    def is_set(self, name: str) -> bool:
        return self.explicit(name) is not None

    @cached_property
    def max_connections_by_listener(self) -> dict[str, int]:
        """The values of ``listener.name.NAME.max.connections``. Each key of the result is a listener's name
        in lower case.

        Raises :class:`ConfigError` for an unusable value in the file. Unusable dynamic values are skipped.
        """
        found: dict[str, int] = {}
        for layer in (self.static, self.cluster_defaults, self.dynamic):
            for name, text in layer.items():
                of_listener = _MAX_CONNECTIONS_OF_LISTENER.fullmatch(name)
                if of_listener is None:
                    continue
                key = replace(BROKER["max.connections"], name=name)
                try:
                    value = key.parse(text) if layer is self.static else dynamic.parse(key, text)
                except ConfigError as error:
                    if layer is self.static:
                        raise
                    self.unusable[name] = error.message
                    continue
                assert isinstance(value, int)
                found[of_listener[1].lower()] = value
        return found

    def passed_on(self, prefix: str) -> dict[str, str]:
        """Return the properties of a plug-in. The prefix is removed from their keys."""
        return {
            name.removeprefix(prefix): value
            for name, value in self.static.items()
            if name.startswith(prefix) and name not in BROKER
        }

    def layers_of(self, name: str) -> list[tuple[ParsedValue, ConfigSource]]:
        """The values of a key from all sources that set it. The effective value is first, and the default is
        last.
        """
        found = [(values[name], source) for source, values in self._layers if name in values]
        default = BROKER[name].default
        return found if default is None else [*found, (default, ConfigSource.DEFAULT)]

    def describe(self) -> list[ConfigEntry]:
        """Describe every key: its value, its source and its synonyms. The keys are in the order of their
        names."""
        return [self.entry(key.name) for key in sorted(BROKER, key=lambda key: key.name)]

    def entry(self, name: str) -> ConfigEntry:
        """Describe one key: its value, its source and its synonyms."""
        key = BROKER[name]
        value, source = self._effective(name)
        synonyms = tuple(
            ConfigSynonym(BROKER[other], found, origin)
            for other in BROKER_SYNONYMS.get(name, (name,))
            for found, origin in self.layers_of(other)
        )
        return ConfigEntry(key, value, source, synonyms, key.update is Update.READ_ONLY)

    def check_dynamic(self, values: Mapping[str, str], *, is_default: bool) -> None:
        """Check whether this running node accepts ``values``, which would replace all of the node's own
        dynamic configs. With ``is_default``, they would replace all of the cluster's dynamic defaults. Raises
        :class:`ConfigError`.
        """
        dynamic.check_keys(BROKER, values, is_default=is_default)
        if is_default:
            changed = self.with_dynamic(values, self.dynamic)
        else:
            changed = self.with_dynamic(self.cluster_defaults, values)
        validate(changed)
        dynamic.check_change(BROKER, self, changed, {*changed.dynamic, *changed.cluster_defaults})
