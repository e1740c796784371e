"""The placement of replicas on brokers. Leaders are balanced, racks are used evenly, and no fenced broker
becomes a leader."""

import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.cluster.decisions.kinds.diskless import assign_coordinators
from moldau.cluster.decisions.partitions.placement import place
from moldau.cluster.image.registrations import BrokerRegistration
from moldau.runtime import ErrorCode, KafkaError, SeededEntropy


def _broker(broker_id: int, rack: str | None = None, *, fenced: bool = False) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=broker_id,
        epoch=0,
        incarnation_id=uuid.UUID(int=broker_id + 1),
        endpoints=(),
        rack=rack,
        fenced=fenced,
    )


@given(st.integers(1, 8), st.integers(1, 40), st.integers(1, 8), st.integers(0, 5))
def test_leaders_and_replicas_are_balanced(brokers: int, partitions: int, factor: int, seed: int) -> None:
    factor = min(factor, brokers)
    placed = place([_broker(index) for index in range(brokers)], partitions, factor, SeededEntropy(seed))
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders[index] for index in range(brokers)) <= 1
    assert all(len(set(replicas)) == factor for replicas in placed)
    counts = Counter(replica for replicas in placed for replica in replicas)
    assert max(counts.values()) - min(counts[index] for index in range(brokers)) <= 2


@given(st.integers(1, 12), st.integers(0, 5))
def test_replicas_are_on_different_racks(partitions: int, seed: int) -> None:
    brokers = [_broker(index, f"rack{index % 3}") for index in range(9)]
    for replicas in place(brokers, partitions, 3, SeededEntropy(seed)):
        assert len({replica % 3 for replica in replicas}) == 3


def test_fenced_brokers_are_the_last_choice_and_never_lead() -> None:
    brokers = [_broker(1), _broker(2), _broker(3, fenced=True)]
    for replicas in place(brokers, 6, 2, SeededEntropy(1)):
        assert set(replicas) == {1, 2}
    for replicas in place(brokers, 6, 3, SeededEntropy(1)):
        assert replicas[2] == 3


def test_no_placement_without_an_active_broker() -> None:
    with pytest.raises(KafkaError, match="fenced") as caught:
        place([_broker(1, fenced=True)], 1, 1, SeededEntropy(1))
    assert caught.value.code is ErrorCode.invalid_replication_factor


@given(st.dictionaries(st.integers(0, 4), st.integers(0, 9)), st.integers(0, 60))
def test_coordinators_get_the_least_loaded_first(load: dict[int, int], count: int) -> None:
    owners = assign_coordinators(load, 5, count)
    final = Counter({owner: load.get(owner, 0) for owner in range(5)})
    for owner in owners:
        assert final[owner] == min(final[other] for other in range(5))
        final[owner] += 1
