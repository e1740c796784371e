"""The dynamic broker configs that a running node accepts, by Kafka's rules (KIP-226).

Undefined keys are accepted for plug-ins, as in Kafka. A single request must not make a node unusable.
Therefore a dynamic value that would refuse all clients is not accepted, although a file may contain such a
value.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from moldau.config.definition import ConfigDef, ConfigError, ConfigKey, Limit, ParsedValue, Update
from moldau.config.node_combinations import check_local_retention
from moldau.config.node_settings import NodeSettings

_RETENTION: Final = (
    "log.retention.ms",
    "log.retention.bytes",
    "log.local.retention.ms",
    "log.local.retention.bytes",
)
_OF_LISTENER: Final = re.compile(r"listener\.name\.[^.]*\.(.*)")


def parse(key: ConfigKey, text: str) -> ParsedValue:
    """Parse the value of a dynamic config. Raises :class:`ConfigError`."""
    value = key.parse(text)
    if Limit.AT_LEAST_ONE in key.limits and isinstance(value, int) and value < 1:
        raise key.error(text, "Value must be at least 1 on a running node")
    return value


def check_keys(definition: ConfigDef, values: Mapping[str, str], *, is_default: bool) -> None:
    """Check that each of these keys can be changed on a running node. Raises :class:`ConfigError`."""
    for name in values:
        key = definition.get(name)
        if key is not None and key.update is Update.READ_ONLY:
            raise ConfigError(name, f"Cannot update these configs dynamically: {name}")
        if key is not None and Limit.BY_LISTENER_ONLY in key.limits:
            raise ConfigError(
                name,
                "These security configs can be dynamically updated only per-listener using the listener "
                f"prefix: {name}",
            )
    for name, text in values.items():
        of_listener = _OF_LISTENER.fullmatch(name)
        key = definition.get(name if of_listener is None else of_listener[1])
        if key is not None:
            # The error names the key with its listener prefix, as the request did. Kafka names the key
            # without the prefix.
            parse(replace(key, name=name), text)
            if is_default and _is_per_broker(key, of_listener is not None):
                raise ConfigError(
                    name,
                    "Cannot update these configs at default cluster level, broker id must be specified: "
                    f"{name}",
                )


def _is_per_broker(key: ConfigKey, is_of_listener: bool) -> bool:
    if is_of_listener:
        return Limit.SAME_FOR_LISTENERS not in key.limits
    return key.update is Update.PER_BROKER


def check_change(
    definition: ConfigDef, now: NodeSettings, then: NodeSettings, overridden: Collection[str]
) -> None:
    """Check that a running node can change from the configuration ``now`` to the configuration ``then``.
    Raises :class:`ConfigError`.

    ``overridden`` are the keys that have a dynamic value after the change. The limit :attr:`Limit.IN_STEPS`
    for numbers of threads does not apply to a return to the static value. In Kafka it applies.
    """
    if any(now[name] != then[name] for name in _RETENTION):
        check_local_retention(then)
    for name in sorted(overridden):
        key = definition.get(name)
        if key is not None and Limit.IN_STEPS in key.limits:
            _check_threads(name, now.integer(name), then.integer(name))
    for name in ("listeners", "advertised.listeners"):
        if getattr(now, name.replace(".", "_")) != getattr(then, name.replace(".", "_")):
            raise ConfigError(name, f"{name} cannot be altered while the node runs")
    for listener in now.listeners:
        if now.security_protocols[listener.name] != then.security_protocols[listener.name]:
            raise ConfigError(
                "listener.security.protocol.map",
                f"Security protocol cannot be updated for existing listener {listener.name}",
            )


def _check_threads(name: str, now: int, then: int) -> None:
    if then == now:
        return
    reason = ""
    if then < now // 2:
        reason = f"value should be at least half the current value {now}"
    elif then > now * 2:
        reason = f"value should not be greater than double the current value {now}"
    if reason:
        raise ConfigError(name, f"Dynamic thread count update validation failed for {name}={then}, {reason}")
