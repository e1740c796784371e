"""Meters and their text format. The parser of prometheus_client reads the text."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from moldau.metrics import BrokerTopicMeters, Histogram, MeterError, Meters


def samples(meters: Meters) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample in the text, parsed by an independent implementation."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(meters.render().decode())
        for sample in family.samples
    }


def test_metrics_have_the_names_that_the_jmx_exporter_gives_them() -> None:
    meters = Meters("kafka.server", "BrokerTopicMetrics")
    meters.counter("MessagesInPerSec", "Messages in", topic="orders").mark(3)
    assert meters.render() == (
        b"# HELP kafka_server_BrokerTopicMetrics_MessagesInPerSec_total Messages in\n"
        b"# TYPE kafka_server_BrokerTopicMetrics_MessagesInPerSec_total counter\n"
        b'kafka_server_BrokerTopicMetrics_MessagesInPerSec_total{topic="orders"} 3\n'
    )


def test_an_empty_registry_has_an_empty_text() -> None:
    assert Meters().render() == b""


def test_an_existing_meter_is_returned_instead_of_a_new_one() -> None:
    meters = Meters("kafka.network", "RequestMetrics")
    first = meters.counter("RequestsPerSec", request="Produce", version="13")
    first.mark()
    again = meters.scoped("kafka.network", "RequestMetrics").counter(
        "RequestsPerSec", version="13", request="Produce"
    )
    again.mark(2)
    assert again is first
    assert meters.value("RequestsPerSec", request="Produce", version="13") == 3
    assert meters.value("RequestsPerSec", request="Fetch") is None


def test_gauges_are_read_when_the_metrics_are_requested() -> None:
    meters = Meters("kafka.server", "ReplicaManager")
    partitions = [1, 2]
    meters.gauge("PartitionCount", lambda: len(partitions))
    partitions.append(3)
    assert meters.value("PartitionCount") == 3
    meters.gauge("PartitionCount", lambda: -0.5)
    assert samples(meters) == {("kafka_server_ReplicaManager_PartitionCount", ()): -0.5}


def test_one_name_has_one_kind() -> None:
    meters = Meters()
    meters.histogram("TotalTimeMs")
    with pytest.raises(MeterError, match="Histogram"):
        meters.gauge("TotalTimeMs", lambda: 0)


def test_label_names_are_checked() -> None:
    with pytest.raises(MeterError, match="client-id"):
        Meters().counter("x", **{"client-id": "a"})


@given(st.text(max_size=20).filter(lambda text: ("\r" not in text and text.isprintable()) or text == "\n"))
def test_special_characters_in_label_values_can_be_parsed(value: str) -> None:
    meters = Meters()
    meters.counter("x", client_id=value).mark(7)
    assert list(samples(meters)) == [("kafka_server_x_total", (("client_id", value),))]


def test_labels_are_bounded() -> None:
    meters = Meters(series_max=3)
    for index in range(10):
        meters.counter("x", client=str(index)).mark()
    found = samples(meters)
    assert len(found) == 4
    assert found["kafka_server_x_total", (("client", "_other_"),)] == 7
    assert sum(found.values()) == 10


def test_a_removed_topic_leaves_no_series() -> None:
    registry = Meters()
    topics = BrokerTopicMeters(registry)
    before = registry.render()
    topics.produced("a", 5, 100)
    topics.produced("a", 5, 100)
    registry.gauge("Size", lambda: 1, topic="a", partition="0")
    assert samples(registry)["kafka_server_BrokerTopicMetrics_BytesInPerSec_total", (("topic", "a"),)] == 200
    topics.remove("a")
    topics.remove("a")
    assert b'topic="a"' not in registry.render()
    assert topics.all.messages_in.value == 10
    assert len(registry.render().splitlines()) == len(before.splitlines())
    topics.produced("a", 1, 1)
    assert topics.topic("a").messages_in.value == 1


def test_a_removal_without_tags_removes_no_series() -> None:
    meters = Meters()
    meters.counter("x", topic="t")
    meters.counter("x")
    assert meters.remove() == 0
    assert meters.remove(topic="t") == 1
    assert meters.value("x") == 0


@given(st.lists(st.floats(0, 60_000), min_size=1, max_size=60))
def test_a_histogram_counts_everything_once(values: list[float]) -> None:
    meters = Meters()
    histogram = meters.histogram("TotalTimeMs", request="Fetch")
    for value in values:
        histogram.update(value)
    found = samples(meters)
    tags = (("request", "Fetch"),)
    assert found["kafka_server_TotalTimeMs_count", tags] == len(values)
    assert found["kafka_server_TotalTimeMs_sum", tags] == pytest.approx(sum(values))
    for bound in histogram.bounds:
        label = str(int(bound)) if bound == int(bound) else repr(bound)
        counted = found["kafka_server_TotalTimeMs_bucket", (("le", label), *tags)]
        assert counted == sum(value <= bound for value in values)


@example([0.0] * 6 + [1.0] * 6, 0.5)
@given(st.lists(st.floats(0, 60_000), min_size=1, max_size=60), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_percentiles_are_exact_to_a_bucket(values: list[float], fraction: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.update(value)
    ordered = sorted(values)
    exact = next(value for rank, value in enumerate(ordered, 1) if rank >= fraction * len(values))
    estimate = histogram.percentile(fraction)
    below = max((bound for bound in histogram.bounds if bound < exact), default=0)
    above = min((bound for bound in histogram.bounds if bound >= exact), default=histogram.bounds[-1])
    assert below <= estimate <= above


def test_the_percentiles_of_an_empty_histogram_are_zero() -> None:
    histogram = Histogram()
    assert (histogram.count, histogram.mean, histogram.percentile(0.99)) == (0, 0, 0)


class NotToBeSearched(dict):
    """A mapping of time series that allows lookups but no iteration."""

    def __iter__(self):
        raise AssertionError("all series were searched for those of one topic")


def test_the_removal_of_a_topic_costs_nothing_for_other_series():
    meters = Meters("kafka.server", "BrokerTopicMetrics")
    for number in range(5):
        meters.counter("MessagesInPerSec", topic=f"t{number}", kind="a")
        meters.counter("BytesInPerSec", topic=f"t{number}")
    for family in meters._families.values():
        family.series = NotToBeSearched(family.series)
    assert meters.remove(topic="t1", kind="a") == 1
    assert meters.remove(topic="t1") == 1
    assert meters.remove(topic="t1") == 0
    assert meters.value("BytesInPerSec", topic="t2") == 0
    assert sum(meters.remove(topic=f"t{number}") for number in range(5)) == 8
    assert not meters._families
    assert not meters._by_tag
