"""Subscriptions to the metrics of clients (KIP-714). They are stored, validated and listed as in Kafka.

Clients do not receive the subscriptions, because the broker cannot receive clients' metrics and does not
advertise the APIs for them.
"""

import re
from collections.abc import Mapping

from moldau.config.bounds import list_of_any
from moldau.config.definition import ConfigDef, ConfigError, ConfigSource
from moldau.config.described_config import ConfigEntry, ConfigSynonym
from moldau.config.keys.rows import MINUTE_MS, int32, list_

KEYS = (
    list_(
        "metrics",
        (),
        "Prefixes of the metrics that clients push; `*` means all metrics.",
        check=list_of_any(),
    ),
    int32("interval.ms", 5 * MINUTE_MS, "The interval between pushes, from 100 to 3600000."),
    list_(
        "match",
        (),
        "Rules that select clients: `selector=pattern,…`. If it is empty, all clients are selected.",
        check=list_of_any(),
    ),
)
CLIENT_METRICS = ConfigDef(KEYS)

_INTERVAL_MS_MIN, _INTERVAL_MS_MAX = 100, 3_600_000
_SELECTORS = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)


class SubscriptionError(ValueError):
    """A subscription is not valid, although each value has the type of its key. For example, it has an
    unknown key or an interval that is not allowed."""


def validate(overrides: Mapping[str, str]) -> None:
    """Check a subscription. Raises :class:`SubscriptionError` or :class:`ConfigError`, because Kafka has a
    separate error code for each of them."""
    for name in overrides:
        if name not in CLIENT_METRICS:
            raise SubscriptionError(f"Unknown client metrics configuration: {name}")
    values = CLIENT_METRICS.parse(overrides)
    interval_ms = values.get("interval.ms")
    if isinstance(interval_ms, int) and not _INTERVAL_MS_MIN <= interval_ms <= _INTERVAL_MS_MAX:
        raise SubscriptionError(
            f"Invalid value {interval_ms} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
        )
    for pattern in values.get("match", ()):  # type: ignore[union-attr]
        _check_pattern(str(pattern))


def _check_pattern(pattern: str) -> None:
    selector, _, expression = pattern.partition("=")
    try:
        re.compile(expression)
    except re.error:
        expression = ""
    if selector.strip() not in _SELECTORS or not expression or "=" in expression:
        raise ConfigError(
            "match",
            f"Invalid value {pattern} for configuration match: Illegal client matching pattern: {pattern}",
        )


def describe(overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every key with value and source, by name."""
    overrides, _ = CLIENT_METRICS.usable(overrides)
    values = CLIENT_METRICS.parse(overrides)
    entries = []
    for key in sorted(CLIENT_METRICS, key=lambda key: key.name):
        value = values.get(key.name, key.default)
        if key.name in overrides:
            source = ConfigSource.DYNAMIC_CLIENT_METRICS
            synonyms: tuple[ConfigSynonym, ...] = (ConfigSynonym(key, value, source),)
        else:
            source, synonyms = ConfigSource.DEFAULT, ()
        entries.append(ConfigEntry(key, value, source, synonyms, False))
    return entries
