"""The row of a kind of topics names an internal topic. The gateways of the kind are the gateways of the
coordinators in this internal topic."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.cluster.decisions.kinds.diskless import DISKLESS
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.server.metadata import cluster_racks
from moldau.server.metadata.cluster_racks import ClusterRacks


def _topic(*leaders: int) -> Any:
    return SimpleNamespace(partitions=[SimpleNamespace(preferred_leader=leader) for leader in leaders])


def test_the_topic_comes_from_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    other = dataclasses.replace(DISKLESS, name="sharded", metadata_topic="__shards")
    monkeypatch.setattr(cluster_racks, "KINDS", (DISKLESS, other))
    broker = SimpleNamespace(broker_id=1, rack="a", is_active=True, is_live=True)
    topics = {DISKLESS_METADATA_TOPIC: _topic(1, 1), "__shards": _topic(1)}
    image = cast(Any, SimpleNamespace(brokers={1: broker}, topics=topics))
    racks = ClusterRacks(1, lambda: image)
    assert [len(racks.gateways_of(kind).hosts) for kind in (DISKLESS, other)] == [2, 1]
    image.topics["__shards"] = _topic(1, 1, 1)
    assert [len(racks.gateways_of(kind).hosts) for kind in (DISKLESS, other)] == [2, 3]
