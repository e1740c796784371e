"""The metrics of a classic partition's traffic."""

from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.runtime.errors import ErrorCode


class PartitionTraffic:
    """Counts traffic for the topic and for all topics."""

    def __init__(self, meters: BrokerTopicMeters, topic: str) -> None:
        self._all = meters.all
        self._to_followers = meters.replication_bytes_out
        self._topic = meters.topic(topic)

    def appended(self, count: int, size_bytes: int) -> None:
        """Count appended records."""
        topic, everything = self._topic, self._all
        topic.messages_in.value += count
        topic.bytes_in.value += size_bytes
        everything.messages_in.value += count
        everything.bytes_in.value += size_bytes

    def fetched(self, size_bytes: int) -> None:
        """Count bytes that a consumer has read."""
        self._topic.bytes_out.value += size_bytes
        self._all.bytes_out.value += size_bytes

    def replicated(self, size_bytes: int) -> None:
        """Count bytes that a follower has read."""
        self._to_followers.value += size_bytes

    def refused(self, code: ErrorCode, size_bytes: int) -> None:
        """Count a refused batch."""
        for meters in (self._topic, self._all):
            meters.failed_produce_requests.value += 1
            meters.bytes_rejected.value += size_bytes
            if code is ErrorCode.corrupt_message:
                meters.invalid_crc_records.value += 1
            elif code in (ErrorCode.out_of_order_sequence_number, ErrorCode.invalid_producer_epoch):
                meters.invalid_offset_or_sequence_records.value += 1
