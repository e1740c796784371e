"""Rules about several keys of a node."""

from itertools import pairwise
from typing import Final

from moldau.config.definition import ConfigError
from moldau.config.keys.synonyms import BROKER_SYNONYMS
from moldau.config.listeners import parse_servers
from moldau.config.node_settings import NodeSettings

ANY_ADDRESS: Final = "0.0.0.0"
"""A listener with this host accepts connections to every address of the machine. No client can connect to
it."""
_MIB = 1024 * 1024


def validate(config: NodeSettings) -> None:
    """Raise :class:`ConfigError` for the first key that contradicts another key. The error names the key, its
    value and the limit.

    The rules also apply when a dynamic config of a running node changes.
    """
    try:
        for check in _CHECKS:
            check(config)
    except ConfigError as error:
        if error.message.startswith("Invalid value"):
            raise
        raise ConfigError(error.key, f"{error.message} ({_values_of(config, error)})") from None


def _values_of(config: NodeSettings, error: ConfigError) -> str:
    """Return the keys that an error message names, with their values. Synonyms of these keys are included if
    they are set."""
    words = [word.strip(".,`'()") for word in error.message.replace("=", " ").split()]
    names = dict.fromkeys([error.key, *words])
    names |= dict.fromkeys(
        name for word in names for name in BROKER_SYNONYMS.get(word, ()) if config.is_set(name)
    )
    return ", ".join(
        f"{name}={','.join(value) if isinstance(value, tuple) else value}"
        for name in names
        if name in config.values
        for value in [config[name]]
        if value is not None
    )


def _require(condition: bool, key: str, message: str) -> None:
    if not condition:
        raise ConfigError(key, message if key in message else f"{key}: {message}")


def _check_identity(config: NodeSettings) -> None:
    _require(
        bool(config.items("process.roles")),
        "process.roles",
        "Missing required configuration `process.roles` which has no default value.",
    )
    node_id, broker_id = config.integer("node.id"), config.integer("broker.id")
    _require(
        not (config.is_set("node.id") and config.is_set("broker.id")) or node_id == broker_id,
        "broker.id",
        "You must set `node.id` to the same value as `broker.id`.",
    )
    _require(
        config.node_id >= 0,
        "node.id",
        "Missing configuration `node.id` which is required when `process.roles` is defined "
        "(i.e. when running in KRaft mode).",
    )


def _check_listeners(config: NodeSettings) -> None:
    names = {endpoint.name for endpoint in config.listeners}
    protocols = config.security_protocols
    for key, endpoints in (
        ("listeners", config.listeners),
        ("advertised.listeners", config.advertised_listeners),
    ):
        for endpoint in endpoints:
            _require(
                endpoint.name in protocols,
                key,
                f"No security protocol defined for listener {endpoint.name} ({key}) in "
                "listener.security.protocol.map",
            )
    for endpoint in config.advertised_listeners:
        _require(
            endpoint.name in names,
            "advertised.listeners",
            "advertised.listeners listener names must be equal to or a subset of the ones defined in "
            f"listeners. Found {endpoint.name}. The valid options based on the current configuration are "
            f"{','.join(sorted(names))}",
        )
        _require(
            endpoint.host != ANY_ADDRESS,
            "advertised.listeners" if config.is_set("advertised.listeners") else "listeners",
            "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP "
            "address.",
        )
    _require(
        not (config.is_set("inter.broker.listener.name") and config.is_set("security.inter.broker.protocol")),
        "inter.broker.listener.name",
        "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.",
    )


def _check_quorum(config: NodeSettings) -> None:
    voters = {voter.node_id for voter in config.quorum_voters}
    servers = config.quorum_bootstrap_servers
    _require(
        bool(voters) or bool(servers),
        "controller.quorum.voters",
        "If using process.roles, either controller.quorum.bootstrap.servers must contain the set of "
        "bootstrap controllers or controller.quorum.voters must contain a parseable set of controllers.",
    )
    node_id = config.node_id
    if config.is_controller:
        _require(
            not voters or node_id in voters,
            "controller.quorum.voters",
            f"If process.roles contains the 'controller' role, the node id {node_id} must be included in the "
            f"set of voters controller.quorum.voters={sorted(voters)}",
        )
    else:
        _require(
            node_id not in voters,
            "controller.quorum.voters",
            f"If process.roles contains just the 'broker' role, the node id {node_id} must not be included "
            f"in the set of voters controller.quorum.voters={sorted(voters)}",
        )


def _check_roles(config: NodeSettings) -> None:
    key = "controller.listener.names"
    names = {endpoint.name for endpoint in config.listeners}
    controllers = config.controller_listener_names
    if config.is_controller:
        _require(
            bool(controllers) and set(controllers) <= names,
            key,
            f"{key} must contain at least one value and only values appearing in the 'listeners' "
            "configuration when running the KRaft controller role",
        )
    else:
        _require(
            bool(controllers),
            key,
            f"{key} must contain at least one value when running KRaft with just the broker role",
        )
        _require(
            not set(controllers) & names,
            key,
            f"{key} must not contain a value appearing in the 'listeners' configuration when running KRaft "
            "with just the broker role",
        )
    if not config.is_broker:
        _require(
            not config.broker_listeners,
            "listeners",
            f"The listeners config must only contain KRaft controller listeners from {key} when "
            "process.roles=controller",
        )
        return
    advertised = {endpoint.name for endpoint in config.advertised_listeners}
    _require(
        bool(advertised),
        "advertised.listeners",
        f"There must be at least one broker advertised listener. Perhaps all listeners appear in {key}?",
    )
    _require(
        config.inter_broker_listener_name in advertised,
        "inter.broker.listener.name",
        f"inter.broker.listener.name must be a listener name defined in advertised.listeners: "
        f"{config.inter_broker_listener_name} is not among {','.join(sorted(advertised))}",
    )


def _check_early_listeners(config: NodeSettings) -> None:
    key = "early.start.listeners"
    early = config.optional_items(key)
    names = {endpoint.name for endpoint in config.listeners}
    _require(
        set(early) <= names and len(set(early)) == len(early),
        key,
        f"Invalid value {','.join(early)} for configuration {key}: it must list listeners of `listeners`, "
        "each once",
    )


def _check_metrics_listener(config: NodeSettings) -> None:
    key = "metrics.listener"
    text = config.optional_text(key)
    if text is not None:
        parse_servers(key, [text])


def _check_log(config: NodeSettings) -> None:
    _require(
        bool(config.log_dirs),
        "log.dirs",
        "At least one log directory must be defined via log.dirs or log.dir.",
    )
    _require(
        len(set(config.log_dirs)) == len(config.log_dirs),
        "log.dirs",
        f"Duplicate log directory found: {','.join(config.log_dirs)}",
    )
    _require(
        len(config.log_dirs) == 1 or not config.flag("remote.log.storage.system.enable"),
        "remote.log.storage.system.enable",
        f"Multiple log directories `{','.join(config.log_dirs)}` are not supported when remote log storage "
        "is enabled.",
    )
    if config.flag("remote.log.storage.system.enable"):
        check_local_retention(config)
    _require(config.log_roll_ms >= 1, "log.roll.ms", "log.roll.ms must be greater than or equal to 1")
    jitter = config.optional_integer("log.roll.jitter.ms")
    _require(
        jitter is None or jitter >= 0,
        "log.roll.jitter.ms",
        "log.roll.jitter.ms must be greater than or equal to 0",
    )
    retention = config.log_retention_ms
    _require(
        retention == -1 or retention >= 1,
        "log.retention.ms",
        "log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
    )
    _require(
        config.integer("log.cleaner.dedupe.buffer.size") // max(1, config.integer("log.cleaner.threads"))
        > _MIB,
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.dedupe.buffer.size must be more than 1MB for each of log.cleaner.threads",
    )


def _check_groups(config: NodeSettings) -> None:
    _check_range(config, "group.min.session.timeout.ms", "group.max.session.timeout.ms")
    for kind in ("consumer", "share", "streams"):
        prefix = f"group.{kind}."
        for name in ("session.timeout.ms", "heartbeat.interval.ms"):
            _check_range(config, f"{prefix}min.{name}", f"{prefix}{name}", f"{prefix}max.{name}")
        heartbeat, session = f"{prefix}heartbeat.interval.ms", f"{prefix}session.timeout.ms"
        _require(
            config.integer(heartbeat) < config.integer(session),
            heartbeat,
            f"{heartbeat} must be less than {session}",
        )
    _check_range(config, "group.share.max.size", "group.share.max.share.sessions")
    lock = "record.lock.duration.ms"
    _check_range(config, f"group.share.min.{lock}", f"group.share.{lock}", f"group.share.max.{lock}")
    _check_range(config, "group.streams.num.standby.replicas", "group.streams.max.standby.replicas")


def _check_range(config: NodeSettings, *keys: str) -> None:
    """Check that no value is greater than the value after it."""
    for low, high in pairwise(keys):
        _require(
            config.integer(low) <= config.integer(high),
            low,
            f"Invalid value {config[low]} for configuration {low}: it must be less than or equal to {high} "
            f"({config[high]})",
        )


def check_local_retention(config: NodeSettings) -> None:
    """Raise :class:`ConfigError` when tiered records would stay longer on the disk than in the topic."""
    for unit, whole in (("ms", config.log_retention_ms), ("bytes", config.integer("log.retention.bytes"))):
        key = f"log.local.retention.{unit}"
        local = config.integer(key)
        reason = ""
        if whole >= 0 and local == -1:
            reason = f"Value must not be -1 as log.retention.{unit} value is set as {whole}."
        elif whole >= 0 and local > whole:
            reason = f"Value must not be more than log.retention.{unit} property value: {whole}"
        _require(not reason, key, f"Invalid value {local} for configuration {key}: {reason}")


def _check_limits(config: NodeSettings) -> None:
    wait = config.integer("replica.fetch.wait.max.ms")
    _require(
        wait <= config.integer("replica.socket.timeout.ms"),
        "replica.socket.timeout.ms",
        "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to prevent "
        "unnecessary socket timeouts",
    )
    _require(
        wait <= config.integer("replica.lag.time.max.ms"),
        "replica.fetch.wait.max.ms",
        "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent "
        "frequent changes in ISR",
    )
    queued = config.integer("queued.max.request.bytes")
    _require(
        queued <= 0 or queued >= config.integer("socket.request.max.bytes"),
        "queued.max.request.bytes",
        "queued.max.request.bytes must be larger or equal to socket.request.max.bytes",
    )
    _require(
        bool(config.max_connections_per_ip_overrides) or config.integer("max.connections.per.ip") > 0,
        "max.connections.per.ip",
        "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set.",
    )
    delay, idle = "connection.failed.authentication.delay.ms", "connections.max.idle.ms"
    _require(
        config.integer(idle) < 0 or config.integer(delay) < config.integer(idle),
        delay,
        f"{delay}={config[delay]} should always be less than {idle}={config[idle]}",
    )
    _require(
        config.integer("broker.heartbeat.interval.ms") * 2 <= config.integer("broker.session.timeout.ms"),
        "broker.session.timeout.ms",
        "broker.heartbeat.interval.ms must be less than or equal to half of broker.session.timeout.ms",
    )


_CHECKS: Final = (
    _check_identity,
    _check_listeners,
    _check_quorum,
    _check_roles,
    _check_early_listeners,
    _check_log,
    _check_limits,
    _check_groups,
    _check_metrics_listener,
)
