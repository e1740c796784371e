"""Options that begin with ``kafka.``: configurations of Kafka's clients, and their effect in Moldau. Pure.

Spark's Kafka connector passes every such option to a Kafka client. Moldau does not use that client, so there
are three kinds of configurations. Some have the same effect in Moldau. Some are accepted and ignored, because
they do not change the result. All others are refused with a reason.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from moldau.client.errors import ToolError

PREFIX: Final = "kafka."
BOOTSTRAP: Final = "kafka.bootstrap.servers"
ISOLATION: Final = "kafka.isolation.level"
COMPRESSION: Final = "kafka.compression.type"
REQUEST_TIMEOUT: Final = "kafka.request.timeout.ms"
CLIENT_RACK: Final = "kafka.client.rack"
TRANSACTIONAL_ID: Final = "kafka.transactional.id"
TRANSACTION_TIMEOUT: Final = "kafka.transaction.timeout.ms"
MEANINGFUL: Final = (
    BOOTSTRAP,
    ISOLATION,
    COMPRESSION,
    REQUEST_TIMEOUT,
    CLIENT_RACK,
    TRANSACTIONAL_ID,
    TRANSACTION_TIMEOUT,
)

_SECURITY: Final = "nodes have no TLS and no SASL yet: leave it out, or set kafka.security.protocol=PLAINTEXT"
_SERIALIZERS: Final = "keys and values are binary columns: convert them with Spark's functions"
_NO_GROUP: Final = "a query keeps its offsets in its checkpoint, not in a consumer group"
_NO_TWO_PHASES: Final = "brokers do not support transactions with two phases"
_PARTITIONER: Final = (
    "rows go where Kafka's default partitioner puts them, or where the column 'partition' says"
)
REFUSED: Final[Mapping[str, str]] = {
    "auto.offset.reset": "give 'startingOffsets' instead",
    "enable.auto.commit": _NO_GROUP,
    "interceptor.classes": "classes of the JVM cannot be called here",
    "metric.reporters": "classes of the JVM cannot be called here",
    "config.providers": "values are taken as they are",
    "key.deserializer": _SERIALIZERS,
    "value.deserializer": _SERIALIZERS,
    "key.serializer": _SERIALIZERS,
    "value.serializer": _SERIALIZERS,
    "partitioner.class": _PARTITIONER,
    "transaction.two.phase.commit.enable": _NO_TWO_PHASES,
    "security.providers": _SECURITY,
}
"""Configurations that are refused because they would change the result or the access rights. Each has the
reason."""
_REFUSED_PREFIXES: Final = ("sasl.", "ssl.")
_ONLY: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "security.protocol": (("plaintext",), _SECURITY),
    "partitioner.ignore.keys": (("false",), _PARTITIONER),
    "acks": (("all", "-1", "0", "1"), "it is all, -1, 0 or 1"),
}
"""Configurations that are accepted only with some values."""
WITHOUT_EFFECT: Final = frozenset(
    [
        "allow.auto.create.topics",
        "auto.include.jmx.reporter",
        "auto.commit.interval.ms",
        "batch.size",
        "buffer.memory",
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "delivery.timeout.ms",
        "enable.idempotence",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "max.request.size",
        "metadata.max.age.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "share.acknowledgement.mode",
        "share.acquire.mode",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    ]
)
"""Configurations of consumers and producers (Kafka 3.9 to 4.2) that do not change the result in Moldau."""
_NAMES: Final = (*WITHOUT_EFFECT, *REFUSED, *_ONLY)


def check_kafka_option(option: str, value: str) -> None:
    """Raises :class:`ToolError` for a configuration that is refused, or that Kafka's clients do not have.

    ``option`` begins with ``kafka.`` and is not in :data:`MEANINGFUL`.
    """
    name = option[len(PREFIX) :].lower()
    if name in WITHOUT_EFFECT:
        return
    if name in _ONLY:
        allowed, reason = _ONLY[name]
        if value.strip().lower() not in allowed:
            raise ToolError(f"option {option!r} cannot be {value!r}: {reason}")
        return
    reason = _SECURITY if name.startswith(_REFUSED_PREFIXES) else REFUSED.get(name, "")
    if reason:
        raise ToolError(f"option {option!r} is not supported: {reason}")
    raise unknown(option, [PREFIX + one for one in _NAMES] + [*MEANINGFUL])


def unknown(option: str, names: Iterable[str]) -> ToolError:
    """The error for an option with an unknown name."""
    by_lower_case = {name.lower(): name for name in names}
    close = difflib.get_close_matches(option.lower(), by_lower_case, n=1)
    hint = f": is it {by_lower_case[close[0]]!r}?" if close else ""
    return ToolError(f"option {option!r} is not supported, nor is it one of Spark's Kafka connector{hint}")
