"""Settings that depend on several keys: the node's roles, folders, listeners and quorum."""

from collections.abc import Mapping
from functools import cached_property

from moldau.config.keys.synonyms import TOPIC_SYNONYMS
from moldau.config.listeners import (
    SECURITY_PROTOCOLS,
    ConfiguredVoter,
    ListenerEndpoint,
    parse_counts,
    parse_endpoints,
    parse_protocol_map,
    parse_servers,
    parse_voters,
)
from moldau.config.settings import Settings

_SECURED = frozenset(SECURITY_PROTOCOLS) - {"PLAINTEXT"}


class NodeSettings(Settings):
    """Values of a node's keys, and values that are computed from them."""

    def is_set(self, name: str) -> bool:
        """Whether the key is set explicitly, so that its default does not apply."""
        raise NotImplementedError

    @property
    def node_id(self) -> int:
        node_id = self.integer("node.id")
        return node_id if node_id >= 0 else self.integer("broker.id")

    @property
    def is_broker(self) -> bool:
        return "broker" in self.items("process.roles")

    @property
    def is_controller(self) -> bool:
        return "controller" in self.items("process.roles")

    @property
    def rack(self) -> str | None:
        return self.optional_text("broker.rack")

    @cached_property
    def log_dirs(self) -> tuple[str, ...]:
        """The folders for the node's data."""
        dirs = self["log.dirs"]
        return self.items("log.dir" if dirs is None else "log.dirs")

    @property
    def metadata_log_dir(self) -> str:
        return self.optional_text("metadata.log.dir") or self.log_dirs[0]

    # Listeners.

    @cached_property
    def listeners(self) -> tuple[ListenerEndpoint, ...]:
        """All listeners of the node, for brokers and for controllers."""
        return parse_endpoints("listeners", self.items("listeners"))

    @cached_property
    def controller_listener_names(self) -> tuple[str, ...]:
        return self.optional_items("controller.listener.names")

    @cached_property
    def broker_listeners(self) -> tuple[ListenerEndpoint, ...]:
        """The listeners that do not belong to controllers."""
        controllers = self.controller_listener_names
        return tuple(endpoint for endpoint in self.listeners if endpoint.name not in controllers)

    @cached_property
    def controller_listeners(self) -> tuple[ListenerEndpoint, ...]:
        controllers = self.controller_listener_names
        return tuple(endpoint for endpoint in self.listeners if endpoint.name in controllers)

    @cached_property
    def advertised_listeners(self) -> tuple[ListenerEndpoint, ...]:
        """Endpoints for clients, without the controllers' listeners. An empty host means this machine's
        name.
        """
        controllers = self.controller_listener_names
        return tuple(endpoint for endpoint in self._advertised if endpoint.name not in controllers)

    @cached_property
    def advertised_controller_listeners(self) -> tuple[ListenerEndpoint, ...]:
        """Advertised endpoints of controllers, if they are configured."""
        controllers = self.controller_listener_names
        return tuple(endpoint for endpoint in self._advertised if endpoint.name in controllers)

    @cached_property
    def _advertised(self) -> tuple[ListenerEndpoint, ...]:
        key = "advertised.listeners"
        return self.listeners if self[key] is None else parse_endpoints(key, self.items(key))

    @cached_property
    def security_protocols(self) -> Mapping[str, str]:
        """Listener name → security protocol. Without a map, the listener of a controller is PLAINTEXT. This
        rule does not apply if any listener has the name of a secure protocol such as SSL, because the
        operator then did not intend plaintext."""
        key = "listener.security.protocol.map"
        protocols = dict(parse_protocol_map(key, self.text(key)))
        names = {endpoint.name for endpoint in self.listeners} | set(self.controller_listener_names)
        if not self.is_set(key) and not names & _SECURED:
            for name in self.controller_listener_names:
                protocols.setdefault(name, "PLAINTEXT")
        return protocols

    @property
    def inter_broker_listener_name(self) -> str:
        name = self.optional_text("inter.broker.listener.name")
        return (name or self.text("security.inter.broker.protocol")).upper()

    @cached_property
    def max_connections_per_ip_overrides(self) -> dict[str, int]:
        key = "max.connections.per.ip.overrides"
        return parse_counts(key, self.text(key))

    # Quorum.

    @cached_property
    def quorum_voters(self) -> tuple[ConfiguredVoter, ...]:
        key = "controller.quorum.voters"
        return parse_voters(key, self.items(key))

    @cached_property
    def quorum_bootstrap_servers(self) -> tuple[tuple[str, int], ...]:
        key = "controller.quorum.bootstrap.servers"
        return parse_servers(key, self.items(key))

    # Times that can be configured in several units.

    def _time_ms(self, topic_key: str) -> int:
        group = TOPIC_SYNONYMS[topic_key]
        chosen = next((synonym for synonym in group if self.is_set(synonym.name)), group[-1])
        value = chosen.convert(self[chosen.name])
        assert isinstance(value, int)
        return value

    @property
    def log_retention_ms(self) -> int:
        """The retention time of logs in ms; -1 means forever."""
        return self._time_ms("retention.ms")

    @property
    def log_roll_ms(self) -> int:
        return self._time_ms("segment.ms")
