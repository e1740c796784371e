"""The configurations for which Moldau's verdict differs from Kafka's, with the reasons. A test checks that
each entry explains a case."""

from collections.abc import Callable
from typing import NamedTuple

from kafka_verdicts import Case


class Difference(NamedTuple):
    """A reason, and the cases that it explains. These are the cases with one of ``keys`` for which
    ``applies`` is true."""

    reason: str
    moldau_accepts: bool
    keys: tuple[str, ...]
    applies: Callable[[Case], bool] = lambda case: True


def _values(case: Case) -> list[str]:
    return [value for _, value in case.given]


def _is_static(case: Case) -> bool:
    return case.surface == "static"


def _has_nan(case: Case) -> bool:
    return "NaN" in _values(case)


DIFFERENCES = (
    Difference(
        "Kafka loads the Java class. Moldau loads none: the key has no effect, or waits for its feature.",
        True,
        (
            "alter.config.policy.class.name",
            "client.quota.callback.class",
            "create.topic.policy.class.name",
            "principal.builder.class",
            "sasl.client.callback.handler.class",
            "sasl.login.callback.handler.class",
            "sasl.login.class",
            "sasl.oauthbearer.jwt.retriever.class",
            "sasl.oauthbearer.jwt.validator.class",
            "sasl.server.callback.handler.class",
            "ssl.engine.factory.class",
        ),
    ),
    Difference(
        "NaN is neither below nor above a bound, so Kafka's check of a range lets it pass.",
        False,
        (
            "log.cleaner.io.buffer.load.factor",
            "log.cleaner.io.max.bytes.per.second",
            "log.cleaner.min.cleanable.ratio",
            "min.cleanable.dirty.ratio",
            "sasl.kerberos.ticket.renew.jitter",
            "sasl.kerberos.ticket.renew.window.factor",
            "sasl.login.refresh.window.factor",
            "sasl.login.refresh.window.jitter",
        ),
        _has_nan,
    ),
    Difference(
        "Compaction needs a rate above 0, and a share of memory above 0 and at most 1.",
        False,
        ("log.cleaner.io.buffer.load.factor", "log.cleaner.io.max.bytes.per.second"),
        lambda case: not _has_nan(case),
    ),
    Difference(
        "A port is at most 65535; Kafka finds that out when a client connects.",
        False,
        ("advertised.listeners",),
    ),
    Difference("A port is not negative.", False, ("listeners",), lambda case: "a:-1" in _values(case)[0]),
    Difference(
        "A broker that sends heartbeats more rarely than twice in its session is fenced again and again.",
        False,
        ("broker.heartbeat.interval.ms", "broker.session.timeout.ms"),
    ),
    Difference(
        "No member could ask for a session time-out: the shortest one that is allowed is above the longest.",
        False,
        ("group.max.session.timeout.ms", "group.min.session.timeout.ms"),
    ),
    Difference(
        "Kafka refuses each creation of a topic instead.",
        False,
        ("default.replication.factor",),
    ),
    Difference("A voter's id occurs twice; Kafka keeps the last one.", False, ("controller.quorum.voters",)),
    Difference(
        "Tiered storage keeps its indexes in the one folder; a folder that is named twice is a mistake.",
        False,
        ("log.dirs",),
    ),
    Difference(
        "A file with an unknown key is refused, with the closest known name; Kafka starts and warns.",
        False,
        ("no.such.key", "retention.ms"),
        _is_static,
    ),
    Difference(
        "The addresses of a running node are those that it listens on.",
        False,
        ("listeners",),
        lambda case: case.surface == "dynamic-broker",
    ),
    Difference(
        "A running Kafka takes no notice of this key's value.",
        False,
        ("config.providers",),
        lambda case: not _is_static(case),
    ),
    Difference(
        "Kafka checks this in the acceptor of a running broker, which the checking JVM does not have.",
        False,
        ("num.network.threads",),
        lambda case: not _is_static(case),
    ),
)


def explanation(case: Case, *, moldau_accepts: bool) -> Difference | None:
    """The reason why the verdicts differ, or ``None`` if there is no explanation."""
    names = {key for key, _ in case.given}
    for difference in DIFFERENCES:
        if (
            difference.moldau_accepts is moldau_accepts
            and names & set(difference.keys)
            and difference.applies(case)
        ):
            return difference
    return None
