"""The meters of the remote tier. They exist from the start, and the meters of a topic are removed with the
topic."""

from moldau.metrics import Meters
from moldau.tiered.meters import TieredMeters


def test_counters_exist_from_the_start() -> None:
    meters = Meters()
    tiered = TieredMeters(meters)
    tiered.gauges("orders", 0)
    page = meters.render().decode()
    for what in ("Copy", "Delete", "Fetch"):
        for kind in ("Requests", "Errors"):
            name = f"kafka_server_BrokerTopicMetrics_Remote{what}{kind}PerSec_total"
            assert f"\n{name} 0\n" in page
            assert f'\n{name}{{topic="orders"}} 0\n' in page


def test_work_in_progress_for_a_deleted_topic_does_not_create_its_series_again() -> None:
    topics = {"orders"}
    meters = Meters()
    tiered = TieredMeters(meters, topics.__contains__)
    tiered.gauges("orders", 0).size_bytes = 7
    tiered.copied("orders", 10)
    assert 'RemoteCopyBytesPerSec_total{topic="orders"} 10' in meters.render().decode()
    topics.clear()
    tiered.remove("orders")
    meters.remove(topic="orders")
    tiered.copied("orders", 10)
    tiered.failed_delete("orders")
    tiered.gauges("orders", 0).size_bytes = 9
    page = meters.render().decode()
    assert "orders" not in page
    assert "\nkafka_server_BrokerTopicMetrics_RemoteCopyBytesPerSec_total 20\n" in page
    assert "\nkafka_server_BrokerTopicMetrics_RemoteDeleteErrorsPerSec_total 1\n" in page
    assert "\nkafka_server_BrokerTopicMetrics_RemoteLogSizeBytes 0\n" in page
    topics.add("orders")
    tiered.copied("orders", 1)
    assert 'RemoteCopyBytesPerSec_total{topic="orders"} 1\n' in meters.render().decode()
