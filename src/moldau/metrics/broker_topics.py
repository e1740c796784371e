"""Kafka's BrokerTopicMetrics. They count the traffic of each topic, and of all topics together."""

from moldau.metrics.meters import Counter
from moldau.metrics.registry import Meters

__all__ = ["BrokerTopicMeters", "TopicMeters"]


class TopicMeters:
    """The meters of a topic, or of all topics (``topic`` None). Frequently executed code adds to the
    ``value`` of a meter directly."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed_fetch_requests",
        "failed_produce_requests",
        "invalid_crc_records",
        "invalid_magic_records",
        "invalid_offset_or_sequence_records",
        "messages_in",
        "no_key_compacted_records",
        "total_fetch_requests",
        "total_produce_requests",
    )

    def __init__(self, meters: Meters, topic: str | None) -> None:
        tags = {} if topic is None else {"topic": topic}

        def counter(name: str) -> Counter:
            return meters.counter(name, **tags)

        self.messages_in = counter("MessagesInPerSec")
        self.bytes_in = counter("BytesInPerSec")
        self.bytes_out = counter("BytesOutPerSec")
        self.bytes_rejected = counter("BytesRejectedPerSec")
        self.failed_produce_requests = counter("FailedProduceRequestsPerSec")
        self.failed_fetch_requests = counter("FailedFetchRequestsPerSec")
        self.total_produce_requests = counter("TotalProduceRequestsPerSec")
        self.total_fetch_requests = counter("TotalFetchRequestsPerSec")
        self.no_key_compacted_records = counter("NoKeyCompactedTopicRecordsPerSec")
        self.invalid_magic_records = counter("InvalidMagicNumberRecordsPerSec")
        self.invalid_crc_records = counter("InvalidMessageCrcRecordsPerSec")
        self.invalid_offset_or_sequence_records = counter("InvalidOffsetOrSequenceRecordsPerSec")


class BrokerTopicMeters:
    """The meters of each topic, which are created at their first use. ``all`` has the sums over all topics of
    the broker.
    """

    __slots__ = ("_meters", "_topics", "all", "replication_bytes_in", "replication_bytes_out")

    def __init__(self, meters: Meters) -> None:
        """``meters`` is any scope of the node's registry."""
        self._meters = meters.scoped("kafka.server", "BrokerTopicMetrics")
        self._topics: dict[str, TopicMeters] = {}
        self.all = TopicMeters(self._meters, None)
        self.replication_bytes_in = self._meters.counter(
            "ReplicationBytesInPerSec", "Bytes of records that followers on this broker have fetched."
        )
        self.replication_bytes_out = self._meters.counter(
            "ReplicationBytesOutPerSec",
            "Bytes of records that leaders on this broker have sent to followers.",
        )

    def topic(self, name: str) -> TopicMeters:
        """The meters of a topic. Call it only for topics that exist, because the meters stay until
        :meth:`remove`.
        """
        meters = self._topics.get(name)
        if meters is None:
            meters = self._topics[name] = TopicMeters(self._meters, name)
        return meters

    def produced(self, topic: str, messages: int, size_bytes: int) -> None:
        """Count an appended batch, for the topic and for all topics."""
        for meters in (self.topic(topic), self.all):
            meters.messages_in.value += messages
            meters.bytes_in.value += size_bytes

    def remove(self, name: str) -> None:
        """Remove the meters of a topic. The topic was deleted, or this broker has no replica of it any
        more."""
        if self._topics.pop(name, None) is not None:
            self._meters.remove(topic=name)
