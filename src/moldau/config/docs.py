"""Writes docs/configuration.md from the definitions."""

from collections.abc import Iterable

from moldau.config.client_metrics import KEYS as CLIENT_METRICS
from moldau.config.definition import ConfigKey
from moldau.config.keys import groups, topic
from moldau.config.keys.sections import SECTIONS
from moldau.config.keys.without_effect import WAITS_FOR

_INTRODUCTION = """# Configuration

<!-- Written by `python -m moldau.config.docs`; change the definitions in src/moldau/config/keys instead. -->

A node reads a file in the syntax of Java's properties, with Kafka's names. `--set KEY=VALUE` overrides a key.
A node with an unknown key or an invalid value does not start. The error names the key and the reason.
Keys that begin with `diskless.storage.`, `diskless.batch.coordinator.`, `rsm.config.` or `rlmm.config.` are
passed to plug-ins. Unknown keys that begin with `listener.name.`, `ssl.` or `sasl.` are accepted, too.

The column *update* shows whether the value can be changed while a node runs:

- *read-only*: only by a restart;
- *per-broker*: for a single broker;
- *cluster-wide*: for a single broker, or as the default of all brokers.

A running node refuses an invalid change with INVALID_REQUEST, as Kafka does. If the change is for a topic or
a group, the error is INVALID_CONFIG. The message names the key, the value and the limit. As in Kafka, a
running node accepts values from 1 on for `max.connections` and `max.connection.creation.rate`. The new value
of a number of threads must be between half and twice the current number. A dynamic key that is not in these
tables is stored for plug-ins, and shown without its value.

Keys with † are accepted so that a configuration file of Kafka works, and have no effect in Moldau.
Keys with ‡ are checked, but have no effect yet, because these features are not built: {features}.
If a key with ‡ is set, the node names it in its log at the start.
"""

_TOPICS = """## Topics

If a topic has no value for a key, the broker config in the last column applies. If the column has several
configs, the first config that is set applies.

"""


_GROUPS = """
## Groups

These are configs of single groups of the consumer, share and streams protocols. The command
`moldau configs alter group NAME` changes them. If a group has no value for a key, the broker config with the
same name after `group.` applies, if it exists. Broker configs with `min` and `max` in their names limit the
values of groups.

"""

_CLIENT_METRICS = """
## Client metrics

These are the configs of KIP-714's subscriptions. The command `moldau configs alter client-metrics NAME`
changes the subscription with a name. Subscriptions are stored and listed, but not sent to clients, because
brokers do not receive telemetry.

"""


def configuration_page() -> str:
    """The whole page, in Markdown."""
    parts = [_INTRODUCTION.format(features="; ".join(sorted(set(WAITS_FOR.values())))), "## Nodes\n"]
    for title, keys in SECTIONS:
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
        synonyms = ", ".join(f"`{synonym.name}`" for synonym in key.synonyms)
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
