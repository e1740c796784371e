"""Writes docs/configuration.md from the definitions."""

from collections.abc import Iterable

from moldau.config.client_metrics import KEYS as CLIENT_METRICS
from moldau.config.definition import ConfigKey
from moldau.config.keys import groups, log, node, security, serving, share, tiers, topic
from moldau.config.keys.waiting import WAITS_FOR
from moldau.config.synonyms import TOPIC_SYNONYMS

_SECTIONS: tuple[tuple[str, tuple[ConfigKey, ...]], ...] = (
    ("The node", node.NODE),
    ("Listeners and connections", node.LISTENERS),
    ("Quorum and metadata log", node.QUORUM),
    ("Log", log.LOG),
    ("Compaction", log.CLEANER),
    ("Replication", serving.REPLICATION),
    ("Fetching", serving.FETCHING),
    ("Groups", groups.GROUPS),
    ("Share groups", share.SHARE),
    ("Committed offsets", serving.OFFSETS),
    ("Producers and transactions", serving.TRANSACTIONS),
    ("Quotas, metrics, security", serving.OPERATIONS),
    ("TLS", security.TLS),
    ("SASL", security.SASL),
    ("Tiered storage", tiers.TIERED),
    ("Diskless topics", tiers.DISKLESS),
    ("Moldau's own", tiers.MOLDAU),
)

_INTRODUCTION = """# Configuration

<!-- Written by `python -m moldau.config.docs`; change the definitions in src/moldau/config/keys instead. -->

A node reads a file in the syntax of Java's properties, with Kafka's names. `--set KEY=VALUE` overrides a key.
A key that is unknown or has a bad value stops the start with its name and the reason. Keys that configure a
plug-in (`diskless.storage.…`, `diskless.batch.coordinator.…`, `rsm.config.…`, `rlmm.config.…`), and
`listener.name.…`, `ssl.…` and `sasl.…`, are passed on.

"Update" says how a running node takes a new value: *read-only* not at all, *cluster-wide* for one broker or
as the default of all, *per-broker* for one broker only. A change that a running node refuses is answered
with INVALID_REQUEST, as Kafka answers it, and a topic's or group's with INVALID_CONFIG; the message names the
key, the value and the bound. As in Kafka a running node takes `max.connections` and
`max.connection.creation.rate` from 1 on, and a number of threads from half to double of the present one.
A key that is not in these tables is kept for plug-ins, and shown without its value.
Keys marked † are accepted so that a file for Kafka works, and change nothing here.
Keys marked ‡ are checked and kept, and wait for what they configure, which is not built yet: {features}.
A node that is started with one of them says so in its log.
"""

_TOPICS = """## Topics

A topic that does not set a key has the value of the broker config in the last column; of several, the
first that is set counts.

"""


_GROUPS = """
## Groups

For single groups of the consumer, share and streams protocols (`moldau configs alter group NAME`). A group
that does not set a key has the broker config of the same name behind `group.`, where there is one; `min` and
`max` there bound what a group may set.

"""

_CLIENT_METRICS = """
## Client metrics

Subscriptions of KIP-714, by name (`moldau configs alter client-metrics NAME`). They are kept and listed;
clients are not told of them, for telemetry is not received.

"""


def configuration_page() -> str:
    """The whole page, in Markdown."""
    parts = [_INTRODUCTION.format(features="; ".join(sorted(set(WAITS_FOR.values())))), "## Nodes\n"]
    for title, keys in _SECTIONS:
        parts.append(f"### {title}\n\n" + _broker_table(keys))
    parts.append(_TOPICS + _topic_table(topic.TOPIC))
    page = "\n".join(parts)
    return page + _GROUPS + _plain_table(groups.GROUP) + _CLIENT_METRICS + _plain_table(CLIENT_METRICS)


def _broker_table(keys: Iterable[ConfigKey]) -> str:
    rows = [
        "| key | type | default | valid | update | importance | what it does |",
        "|---|---|---|---|---|---|---|",
    ]
    rows += [
        f"| `{key.name}`{_mark(key)} | {key.type.name.lower()} | {_default(key)} "
        f"| {_cell(key.valid)} | {key.update.value} | {key.importance.value} | {_cell(key.doc)} |"
        for key in keys
    ]
    return "\n".join(rows) + "\n"


def _topic_table(keys: Iterable[ConfigKey]) -> str:
    rows = ["| key | type | default | valid | what it does | broker config |", "|---|---|---|---|---|---|"]
    for key in keys:
        synonyms = ", ".join(f"`{synonym.name}`" for synonym in TOPIC_SYNONYMS.get(key.name, ()))
        rows.append(
            f"| `{key.name}`{_mark(key)} | {key.type.name.lower()} | {_default(key)} | {_cell(key.valid)} "
            f"| {_cell(key.doc)} | {synonyms} |"
        )
    return "\n".join(rows) + "\n"


def _plain_table(keys: Iterable[ConfigKey]) -> str:
    rows = ["| key | type | default | valid | what it does |", "|---|---|---|---|---|"]
    rows += [
        f"| `{key.name}` | {key.type.name.lower()} | {_default(key)} "
        f"| {_cell(key.valid)} | {_cell(key.doc)} |"
        for key in keys
    ]
    return "\n".join(rows) + "\n"


def _mark(key: ConfigKey) -> str:
    if key.name in WAITS_FOR:
        return " ‡"
    return "" if key.has_effect else " †"


def _default(key: ConfigKey) -> str:
    text = key.format(key.default)
    if text is None:
        return "null"
    return f"`{text}`" if text else '""'


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(configuration_page(), end="")
