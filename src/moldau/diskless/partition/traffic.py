"""Kafka's own meters of a topic's traffic, as diskless partitions feed them."""

from moldau.metrics import BrokerTopicMeters
from moldau.runtime import ErrorCode


class TopicTraffic:
    """Counts for one topic and for the broker."""

    def __init__(self, meters: BrokerTopicMeters, topic: str) -> None:
        self._scopes = (meters.topic(topic), meters.all)

    def appended(self, records_count: int, size_bytes: int) -> None:
        for meters in self._scopes:
            meters.messages_in.value += records_count
            meters.bytes_in.value += size_bytes

    def refused(self, code: ErrorCode, size_bytes: int) -> None:
        for meters in self._scopes:
            meters.failed_produce_requests.value += 1
            meters.bytes_rejected.value += size_bytes
            if code is ErrorCode.corrupt_message:
                meters.invalid_crc_records.value += 1

    def read(self, size_bytes: int) -> None:
        for meters in self._scopes:
            meters.bytes_out.value += size_bytes
