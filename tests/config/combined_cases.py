"""Cases with several config keys: times in several units, limits that are keys themselves, and dynamic
changes."""

from collections.abc import Iterator

from kafka_verdicts import Case

_MIB = 1 << 20


def combined_cases() -> Iterator[Case]:
    """Cases with several keys. Cases with a single key come from the list of keys."""
    for surface, rows in _ROWS.items():
        for row in rows:
            yield Case(surface, tuple((key, str(value)) for key, value in row.items()))


def _times() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for hours in (-5, -1, 0, 1, 2**31 - 1):
        for minutes in (-5, -1, 0, 1, None):
            for ms in (-5, -1, 0, 1, None):
                row = {"log.retention.hours": hours, "log.retention.minutes": minutes, "log.retention.ms": ms}
                rows.append({key: value for key, value in row.items() if value is not None})
    for ms in (-1, 0, 1):
        rows.append({"log.roll.hours": 1, "log.roll.ms": ms})
        rows.append({"log.roll.jitter.hours": 1, "log.roll.jitter.ms": ms})
    return rows


def _local(prefix: str) -> list[dict[str, object]]:
    return [
        {f"{prefix}retention.{unit}": whole, f"{prefix}local.retention.{unit}": local}
        for unit in ("ms", "bytes")
        for whole in (-1, 1, 1000)
        for local in (-2, -1, 0, 1, 999, 1000, 1001)
    ]


def _group_bounds(prefix: str, low: int, high: int, name: str) -> list[dict[str, object]]:
    return [
        {f"{prefix}min.{name}": low, f"{prefix}{name}": value, f"{prefix}max.{name}": high}
        for value in (low - 1, low, low + 1, high - 1, high, high + 1)
    ]


_ROWS: dict[str, list[dict[str, object]]] = {
    "static": [
        *_times(),
        *_local("log."),
        *(
            {"replica.fetch.wait.max.ms": wait, "replica.lag.time.max.ms": lag}
            for wait in (499, 500, 501)
            for lag in (500,)
        ),
        *({"replica.fetch.wait.max.ms": wait, "replica.socket.timeout.ms": 500} for wait in (499, 500, 501)),
        *(
            {"socket.request.max.bytes": 1000, "queued.max.request.bytes": queued}
            for queued in (-2, -1, 0, 1, 999, 1000, 1001)
        ),
        *(
            {"max.connections.per.ip": bound, "max.connections.per.ip.overrides": text}
            for bound in (-1, 0, 1)
            for text in ("", "127.0.0.1:1", "::1:5", "a b:1", "a:-1")
        ),
        *(
            {"connection.failed.authentication.delay.ms": delay, "connections.max.idle.ms": idle}
            for delay in (0, 1, 5)
            for idle in (-1, 0, 1, 5, 6)
        ),
        *(
            {"log.cleaner.threads": threads, "log.cleaner.dedupe.buffer.size": size}
            for threads in (1, 2)
            for size in (_MIB, _MIB + 1, 2 * _MIB, 2 * _MIB + 1, 2 * _MIB + 2)
        ),
        *({"group.share.max.size": size, "group.share.max.share.sessions": 200} for size in (199, 200, 201)),
        *(
            {"group.streams.num.standby.replicas": count, "group.streams.max.standby.replicas": 3}
            for count in (2, 3, 4)
        ),
        *_group_bounds("group.consumer.", 40_000, 50_000, "session.timeout.ms"),
        *_group_bounds("group.share.", 40_000, 50_000, "session.timeout.ms"),
        *_group_bounds("group.streams.", 40_000, 50_000, "session.timeout.ms"),
        *_group_bounds("group.consumer.", 4000, 6000, "heartbeat.interval.ms"),
        *_group_bounds("group.share.", 4000, 6000, "heartbeat.interval.ms"),
        *_group_bounds("group.streams.", 4000, 6000, "heartbeat.interval.ms"),
        *_group_bounds("group.share.", 20_000, 50_000, "record.lock.duration.ms"),
        {"broker.id": 1, "node.id": 1},
        {"broker.id": 2, "node.id": 1},
        {"node.id": -1},
        {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
        {"advertised.listeners": "PLAINTEXT://a:1", "inter.broker.listener.name": "PLAINTEXT"},
        {"listeners": "PLAINTEXT://a:1,CONTROLLER://a:1"},
        {"listeners": "PLAINTEXT://a:1,PLAINTEXT://a:2,CONTROLLER://a:3"},
        {"listeners": "plaintext://a:1,CONTROLLER://a:3"},
        {"listeners": "PLAINTEXT://a:-1,CONTROLLER://a:3"},
        {"listeners": "PLAINTEXT://a:1,SASL_PLAINTEXT://a:2,CONTROLLER://a:3"},
        {"process.roles": "broker", "listeners": "PLAINTEXT://a:1", "controller.quorum.voters": "2@a:1"},
        {"process.roles": "broker", "listeners": "PLAINTEXT://a:1", "controller.quorum.voters": "1@a:1"},
        {"process.roles": "controller", "listeners": "CONTROLLER://a:1"},
        {"process.roles": "controller", "listeners": "CONTROLLER://a:1,PLAINTEXT://a:2"},
        {"controller.quorum.voters": "2@a:1"},
        {"controller.quorum.voters": "1@a:1,1@a:2"},
        {"controller.quorum.voters": "", "controller.quorum.bootstrap.servers": "a:1"},
        {"controller.quorum.voters": "", "controller.quorum.bootstrap.servers": ""},
        {"no.such.key": "x"},
        {"retention.ms": "5"},
    ],
    "dynamic-broker": [
        *_local("log."),
        {"log.retention.hours": 5},
        {"log.retention.minutes": 5},
        {"log.retention.ms": -5},
        {"no.such.key": "x"},
        {"listener.name.plaintext.max.connections": 5},
        {"listener.name.plaintext.max.connections": 0},
        {"listener.name.plaintext.ssl.keystore.location": "/a"},
        {"listener.name.other.ssl.keystore.location": "/a"},
        {"listener.name.plaintext.num.partitions": "x"},
        {"listener.name.plaintext.max.connections": "x"},
        {"listener.name.plaintext.no.such.key": "x"},
        {"max.connections.per.ip": 0, "max.connections.per.ip.overrides": "127.0.0.1:1"},
        {"max.connections": 1},
        {"num.io.threads": 4, "background.threads": 20},
        {"num.io.threads": 4, "background.threads": 21},
        {"node.id": 1},
        {"log.cleaner.threads": 2, "log.cleaner.dedupe.buffer.size": 2 * _MIB},
        {"log.cleaner.threads": 2, "log.cleaner.dedupe.buffer.size": 2 * _MIB + 2},
    ],
    "dynamic-default": [
        {"no.such.key": "x"},
        {"listener.name.plaintext.max.connections": 5},
        {"listener.name.plaintext.ssl.keystore.location": "/a"},
        {"max.connections.per.ip": 0, "max.connections.per.ip.overrides": "127.0.0.1:1"},
        {"sasl.enabled.mechanisms": "PLAIN"},
        {"ssl.keystore.location": "/a"},
        *_local("log."),
    ],
    "topic": [
        *({"remote.storage.enable": "true", **row} for row in _local("")),
        *_local(""),
        *({"remote.storage.enable": "true", "remote.log.copy.disable": "true", **row} for row in _local("")),
        *(
            {"remote.storage.enable": "true", "cleanup.policy": policy}
            for policy in ("delete", "compact", "compact,delete", "")
        ),
        *({"min.compaction.lag.ms": low, "max.compaction.lag.ms": 10} for low in (9, 10, 11)),
        {"no.such.key": "x"},
        {"remote.log.delete.on.disable": "true", "remote.storage.enable": "false"},
        {"message.format.version": "3.0"},
        {"message.timestamp.difference.max.ms": "5"},
    ],
    "group": [
        *(
            {"consumer.session.timeout.ms": session, "consumer.heartbeat.interval.ms": beat}
            for session in (44_999, 45_000, 60_000, 60_001)
            for beat in (4999, 5000, 15_000, 15_001)
        ),
        *(
            {"share.session.timeout.ms": session, "share.heartbeat.interval.ms": beat}
            for session in (44_999, 45_000, 60_000, 60_001)
            for beat in (4999, 5000, 15_000, 15_001)
        ),
        *(
            {"streams.session.timeout.ms": session, "streams.heartbeat.interval.ms": beat}
            for session in (44_999, 45_000, 60_000, 60_001)
            for beat in (4999, 5000, 15_000, 15_001)
        ),
        {"no.such.key": "x"},
    ],
    "client-metrics": [
        {"metrics": "a", "interval.ms": 100, "match": "client_id=x"},
        {"metrics": "a", "interval.ms": 99},
        {"no.such.key": "x"},
    ],
}
