"""Produce gateways: KIP-1164's six scenarios are compared with golden tables, and the limits of the KIP are
checked as properties."""

import os
import pathlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.cluster.racks.gateways import Gateways, RackBroker, produce_gateways

GOLDEN = pathlib.Path(__file__).parent / "gateways"
SCENARIOS = {1: (3, 12), 2: (6, 12), 3: (12, 12), 4: (24, 12), 5: (36, 12), 6: (108, 12)}
"""The numbers of brokers and coordinators of each scenario, in three racks."""


def scenario(broker_count: int, coordinator_count: int) -> tuple[list[RackBroker], list[int]]:
    """Brokers that are spread over three racks, and preferred replicas that are spread over all brokers."""
    brokers = [RackBroker(number, "abc"[number % 3]) for number in range(broker_count)]
    return brokers, [each * broker_count // coordinator_count for each in range(coordinator_count)]


def table(brokers: Sequence[RackBroker], hosts: Sequence[int]) -> str:
    found = produce_gateways(brokers, hosts)
    lines = ["coordinator  host  gateways of rack a; b; c"]
    for each, host in enumerate(hosts):
        racks = "; ".join(" ".join(map(str, found.of(each, rack))) for rack in "abc")
        lines.append(f"{each:<11}  {host:<4}  {racks}")
    counts = Counter(
        (len(found.coordinators_of(broker.broker_id)), found.commit_calls(broker.broker_id))
        for broker in brokers
    )
    lines.append("coordinators  calls  brokers")
    lines += [f"{held:<12}  {calls:<5}  {count}" for (held, calls), count in sorted(counts.items())]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("number", SCENARIOS)
def test_the_scenarios_of_the_kip_are_as_in_the_table(number: int) -> None:
    path = GOLDEN / f"scenario_{number}.txt"
    actual = table(*scenario(*SCENARIOS[number]))
    if os.environ.get("GOLDEN_REWRITE"):
        path.write_text(actual)
    assert actual == path.read_text()


@pytest.mark.parametrize(("number", "coordinators", "calls"), [(1, 12, 2), (2, 6, 2), (3, 3, 2), (4, 2, 2),
                                                               (5, 1, 1), (6, 1, 1)])  # fmt: skip
def test_the_scenarios_keep_the_bounds_that_the_kip_states(
    number: int, coordinators: int, calls: int
) -> None:
    brokers, hosts = scenario(*SCENARIOS[number])
    found = produce_gateways(brokers, hosts)
    assert max(len(found.coordinators_of(each.broker_id)) for each in brokers) == coordinators
    assert max(found.commit_calls(each.broker_id) for each in brokers) <= calls
    gateways = max(1, len(brokers) // len(hosts) // 3)
    assert {len(found.of(each, rack)) for each in range(len(hosts)) for rack in "abc"} == {gateways}


@dataclass(frozen=True)
class Cluster:
    brokers: list[RackBroker]
    hosts: list[int]

    def in_rack(self, rack: str | None) -> list[int]:
        return [each.broker_id for each in self.brokers if each.rack == rack]

    @property
    def gateways(self) -> Gateways:
        return produce_gateways(self.brokers, self.hosts)

    @property
    def racks(self) -> set[str | None]:
        return {each.rack for each in self.brokers}


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    names: list[str | None] = ["a", "b", "c", None]
    racks = [rack for rack, size in zip(names, sizes, strict=False) for _ in range(size)]
    brokers = [RackBroker(number, rack) for number, rack in enumerate(racks)]
    hosts = draw(st.lists(st.sampled_from(range(len(brokers))), min_size=1, max_size=20))
    return Cluster(brokers, hosts)


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


@settings(max_examples=40)
@given(clusters())
def test_commit_calls_of_a_file_are_bounded(cluster: Cluster) -> None:
    found = cluster.gateways
    for rack in cluster.racks:
        members = cluster.in_rack(rack)
        bound = 1
        if len(members) < len(cluster.hosts):
            others = [set(cluster.in_rack(other)) & set(cluster.hosts) for other in cluster.racks - {rack}]
            bound = sum(_ceil(len(hosts), len(members)) for hosts in others)
            if len(set(cluster.hosts)) < len(members):
                # The rack has more brokers than there are hosts of coordinators, so each of these brokers is
                # the gateway for coordinators of only one host.
                bound = 1
        for broker_id in members:
            assert found.commit_calls(broker_id) <= bound


@settings(max_examples=40)
@given(st.integers(2, 5), st.integers(1, 6), st.integers(1, 3))
def test_equal_racks_need_at_most_one_call_for_each_other_rack(racks: int, size: int, held: int) -> None:
    """All racks have the same number of brokers. One call reaches all coordinators on one broker, so a broker
    needs at most as many calls as there are other racks."""
    brokers = [RackBroker(number, f"rack-{number % racks}") for number in range(racks * size)]
    found = produce_gateways(brokers, [number % len(brokers) for number in range(held * len(brokers))])
    assert all(found.commit_calls(each.broker_id) <= racks - 1 for each in brokers)


@settings(max_examples=40)
@given(clusters())
def test_each_coordinator_has_its_gateways_in_each_rack(cluster: Cluster) -> None:
    found = cluster.gateways
    for rack in cluster.racks:
        members = cluster.in_rack(rack)
        wanted = max(1, len(members) // len(cluster.hosts))
        for number in range(len(cluster.hosts)):
            gateways = found.of(number, rack)
            assert len(gateways) == len(set(gateways)) == wanted
            assert set(gateways) <= set(members)


@settings(max_examples=40)
@given(clusters())
def test_a_host_is_a_gateway_of_its_own_coordinators(cluster: Cluster) -> None:
    found = cluster.gateways
    for host in set(cluster.hosts):
        own = {number for number, each in enumerate(cluster.hosts) if each == host}
        assert own & set(found.coordinators_of(host))
        if len(set(cluster.hosts)) >= len(cluster.in_rack(cluster.brokers[host].rack)):
            assert own <= set(found.coordinators_of(host))


@settings(max_examples=40)
@given(clusters(), st.data())
def test_fencing_a_broker_moves_only_the_coordinators_of_this_gateway(
    cluster: Cluster, data: st.DataObject
) -> None:
    before = cluster.gateways
    fenced = data.draw(st.sampled_from(cluster.brokers))
    brokers = [each._replace(is_live=each is not fenced) for each in cluster.brokers]
    after = produce_gateways(brokers, cluster.hosts)
    members = set(cluster.in_rack(fenced.rack)) - {fenced.broker_id}
    for rack in cluster.racks:
        for number in range(len(cluster.hosts)):
            had, has = set(before.of(number, rack)), set(after.of(number, rack))
            if fenced.broker_id not in had:
                assert has == had
            else:
                left = had - {fenced.broker_id}
                assert has == left if left else len(has) == (1 if members else 0)
            assert fenced.broker_id not in has


@settings(max_examples=40)
@given(clusters(), st.data())
def test_gateways_do_not_depend_on_the_order_of_registrations(cluster: Cluster, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(cluster.brokers))
    assert produce_gateways(shuffled, cluster.hosts) == cluster.gateways


def test_a_new_broker_moves_little() -> None:
    """60 coordinators are on 20 hosts of rack ``a``. A fifth broker is added to rack ``b``. This new broker
    becomes the gateway of about 12 of these coordinators."""
    brokers = [RackBroker(number, "a" if number < 20 else "b") for number in range(24)]
    hosts = [number % 20 for number in range(60)]
    before = produce_gateways(brokers, hosts)
    after = produce_gateways([*brokers, RackBroker(24, "b")], hosts)
    moved = [number for number in range(60) if before.of(number, "b") != after.of(number, "b")]
    assert len(after.coordinators_of(24)) == 12
    assert len(moved) <= 21
    assert all(before.of(number, "a") == after.of(number, "a") for number in range(60))


def test_partitions_of_a_coordinator_are_spread_over_its_gateways() -> None:
    brokers, hosts = scenario(108, 12)
    found = produce_gateways(brokers, hosts)
    topic_id = UUID(int=7)
    counts = Counter(found.of_partition(topic_id, index, 5, "b") for index in range(300))
    assert set(counts) == set(found.of(5, "b"))
    assert min(counts.values()) > 70


def test_a_rack_without_live_brokers_has_no_gateways() -> None:
    brokers = [RackBroker(1, "a"), RackBroker(2, "b", is_live=False)]
    found = produce_gateways(brokers, [2])
    assert found.of(0, "b") == ()
    assert found.of_partition(UUID(int=1), 0, 0, "b") is None
    assert found.of(0, "a") == (1,)
