"""Meters of a node, under the names that Kafka's dashboards use."""

from collections.abc import Callable, Iterable

from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.metrics.meters import Counter, Histogram
from moldau.metrics.registry import Meters
from moldau.network.limits import NetworkCounters
from moldau.protocol.api import ApiKey


class NodeMeters:
    """The registry of a node and the meters that many handlers share."""

    def __init__(self) -> None:
        self.registry = Meters("kafka.server", "KafkaServer")
        self.topics = BrokerTopicMeters(self.registry)
        self.requests = RequestMeters(self.registry)

    def gauge(self, group: str, scope: str, name: str, read: Callable[[], float], **tags: str) -> None:
        """A number that is computed at each scrape."""
        self.registry.scoped(group, scope).gauge(name, read, **tags)

    def watch_network(self, listeners: Iterable[str], counters: NetworkCounters) -> None:
        """Show the counters of a socket server as meters."""
        scoped = self.registry.scoped("kafka.server", "socket-server-metrics")
        tags = {"listener": ",".join(listeners)}
        readings: dict[str, Callable[[], float]] = {
            "connection-count": lambda: counters.connections_open,
            "connection-creation-total": lambda: counters.connections_created,
            "connection-close-total": lambda: counters.connections_closed,
            "connection-refused-total": lambda: counters.connections_refused,
            "expired-connections-killed-count": lambda: counters.connections_idle_closed,
            "incoming-byte-total": lambda: counters.bytes_in,
            "outgoing-byte-total": lambda: counters.bytes_out,
            "requests-in-flight": lambda: counters.in_flight_requests,
            "request-bytes-in-flight": lambda: counters.in_flight_bytes,
        }
        for name, read in readings.items():
            scoped.gauge(name, read, **tags)


class RequestMeters:
    """Kafka's RequestMetrics: count, total time and size of requests by API."""

    def __init__(self, registry: Meters) -> None:
        self._meters = registry.scoped("kafka.network", "RequestMetrics")
        self._by_api: dict[int, tuple[Counter, Histogram, Counter]] = {}

    def requests_handled(self, api_key: int, count: int, seconds: float, request_bytes: int) -> None:
        """Count answered requests. Implements ``dispatch.RequestObserver``."""
        meters = self._by_api.get(api_key) or self._new(api_key)
        meters[0].value += count
        meters[1].update(seconds * 1000, count)
        meters[2].value += request_bytes

    def _new(self, api_key: int) -> tuple[Counter, Histogram, Counter]:
        try:
            name = "".join(part.capitalize() for part in ApiKey(api_key).name.split("_"))
        except ValueError:
            name = str(api_key)
        meters = (
            self._meters.counter("RequestsPerSec", "Requests answered.", request=name),
            self._meters.histogram(
                "TotalTimeMs", "From the last byte of a request to its answer.", request=name
            ),
            self._meters.counter("RequestBytes", "Bytes of requests.", request=name),
        )
        self._by_api[api_key] = meters
        return meters
