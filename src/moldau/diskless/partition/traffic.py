"""Kafka's meters of a topic's traffic, for diskless partitions."""

from collections.abc import Callable

from moldau.metrics import BrokerTopicMeters, Meters
from moldau.runtime import ErrorCode


class RackTraffic:
    """Counts bytes of records that pass between two racks, from a client to this broker or back.

    It does not count bytes of clients whose rack is unknown, or bytes of a broker without a rack.
    """

    def __init__(self, meters: Meters, own_rack: Callable[[], str | None] = lambda: None) -> None:
        scope = meters.scoped("moldau.diskless", "RackTraffic")
        self._own_rack = own_rack
        self.bytes_in = scope.counter(
            "CrossRackBytesInPerSec", "Bytes of records that producers in other racks sent."
        )
        self.bytes_out = scope.counter(
            "CrossRackBytesOutPerSec", "Bytes of records that were sent to consumers in other racks."
        )

    def received(self, size_bytes: int, rack: str | None) -> None:
        """Count bytes from a producer, if its ``rack`` is not the rack of this broker."""
        if rack is not None and rack != self._own_rack() is not None:
            self.bytes_in.value += size_bytes

    def sent(self, size_bytes: int, rack: str | None) -> None:
        """Count bytes to a consumer, if its ``rack`` is not the rack of this broker."""
        if rack is not None and rack != self._own_rack() is not None:
            self.bytes_out.value += size_bytes


class TopicTraffic:
    """Counts the traffic of a topic, and the traffic of the broker."""

    def __init__(self, meters: BrokerTopicMeters, topic: str, racks: RackTraffic) -> None:
        self._scopes = (meters.topic(topic), meters.all)
        self._racks = racks

    def received(self, size_bytes: int, rack: str | None) -> None:
        """Count bytes that pass between two racks, from a producer in ``rack`` to this broker. Refused bytes
        are included."""
        self._racks.received(size_bytes, rack)

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

    def read(self, size_bytes: int, rack: str | None) -> None:
        self._racks.sent(size_bytes, rack)
        for meters in self._scopes:
            meters.bytes_out.value += size_bytes
