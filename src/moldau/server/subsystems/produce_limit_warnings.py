"""Warns about legal configurations that refuse every producer.

For example, Kafka and Moldau both accept ``message.max.bytes=5`` and ``min.insync.replicas=2147483647``. With
such a value, every producer gets an error, and the error does not show the cause. A log line and a notice on
the health page name the key.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.config.broker import BrokerConfig
from moldau.config.topic_config import TopicConfig
from moldau.records.batch import HEADER_SIZE_BYTES
from moldau.server.subsystem import Contribution, Subsystem

logger = logging.getLogger(__name__)

SMALLEST_BATCH_BYTES: Final = HEADER_SIZE_BYTES + 7
"""Size in bytes of a batch with one record, which has no key and no value."""
SMALLEST_REQUEST_BYTES: Final = SMALLEST_BATCH_BYTES + 32
_SHORTEST_TIME_MS: Final = 10
"""A time limit for records below this number of milliseconds refuses every record, because the way from the
producer to the broker takes longer."""
_KEYS_OF_TOPICS: Final = frozenset(
    {
        "max.message.bytes",
        "min.insync.replicas",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
    }
)
_SHOWN_MAX: Final = 3


class ProduceLimitWarnings(Subsystem):
    """Checks every new image; :meth:`notice` has the result."""

    def __init__(self, broker: Callable[[], BrokerConfig], topic: Callable[[str], TopicConfig]) -> None:
        """The arguments are functions. They return the effective configuration of the broker, and the
        configuration of a topic by its name."""
        self._broker = broker
        self._topic = topic
        self._checked: tuple[BrokerConfig, int] | None = None
        self._of_broker: tuple[str, ...] = ()
        self._of_topics: dict[str, tuple[str, ...]] = {}

    def contribution(self) -> Contribution:
        return Contribution(notices={"limits": self.notice})

    def notice(self) -> str | None:
        """Return the configurations that refuse every producer, in one sentence; None when there are no such
        configurations."""
        found = [*self._of_broker]
        for name, reasons in self._of_topics.items():
            found += [f"topic {name}: {reason}" for reason in reasons]
        if not found:
            return None
        more = f"; and {len(found) - _SHOWN_MAX} more" if len(found) > _SHOWN_MAX else ""
        return "; ".join(found[:_SHOWN_MAX]) + more

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Check the broker, and the topics whose configuration or replicas have changed."""
        broker, count = self._broker(), len(image.brokers)
        if (broker, count) != self._checked:
            self._checked = broker, count
            before, self._of_broker = self._of_broker, tuple(_check_broker(broker, count))
            _log_limits("this broker", before, self._of_broker)
        for name in dict.fromkeys(_changed(delta)):
            known = self._of_topics.pop(name, ())
            if found := tuple(self._check_topic(image, name)):
                self._of_topics[name] = found
                _log_limits(f"topic {name}", known, found)

    def _check_topic(self, image: MetadataImage, name: str) -> Iterator[str]:
        own = image.config(ResourceType.TOPIC, name)
        topic = image.topics.get(name)
        if topic is None or _KEYS_OF_TOPICS.isdisjoint(own):
            return
        config = self._topic(name)
        yield from _problems_of(config, "max.message.bytes", "message.timestamp.before.max.ms")
        count = min((len(partition.replicas) for partition in topic.partitions), default=0)
        if count and config.min_insync_replicas > count:
            yield (
                f"min.insync.replicas={config.min_insync_replicas} is more than its {count} replicas:"
                " producers with acks=all are refused"
            )


def _check_broker(broker: BrokerConfig, broker_count: int) -> Iterator[str]:
    largest_request = broker.integer("socket.request.max.bytes")
    if largest_request < SMALLEST_REQUEST_BYTES:
        yield f"socket.request.max.bytes={largest_request} is less than any produce request has"
    defaults = TopicConfig.effective(broker, {})
    yield from _problems_of(defaults, "message.max.bytes", "log.message.timestamp.before.max.ms")
    if broker_count and defaults.min_insync_replicas > broker_count:
        yield (
            f"min.insync.replicas={defaults.min_insync_replicas} is more than the number of brokers,"
            f" {broker_count}: producers with acks=all are refused"
        )


def _problems_of(config: TopicConfig, size_key: str, time_key: str) -> Iterator[str]:
    if config.max_message_bytes < SMALLEST_BATCH_BYTES:
        yield f"{size_key}={config.max_message_bytes} is less than the smallest batch has"
    before_ms = config.integer("message.timestamp.before.max.ms")
    if before_ms < _SHORTEST_TIME_MS and not config.stamps_at_append:
        yield f"{time_key}={before_ms} refuses records that are older than that when they arrive"


def _changed(delta: MetadataDelta) -> Iterator[str]:
    for kind, name in delta.configs.entries:
        if kind == ResourceType.TOPIC:
            yield name
    for topics in (delta.topics.changed, delta.topics.removed):
        yield from (topic.name for topic in topics.values())


def _log_limits(what: str, known: Iterable[str], found: Iterable[str]) -> None:
    for reason in found:
        if reason not in known:
            logger.warning("%s refuses all producers, or nearly all: %s", what, reason)
