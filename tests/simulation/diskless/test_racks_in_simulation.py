"""Six brokers in three racks, in virtual time. No record bytes leave their rack, and each rack reads an
object once."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from moldau.cluster.decisions.kinds.diskless import DISKLESS
from moldau.cluster.decisions.kinds.table import kind_of
from moldau.diskless.reading.rack_objects import RackObjects
from moldau.server.metadata import cluster_racks
from moldau.server.metadata.cluster_racks import ClusterRacks
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


@pytest.mark.parametrize(
    ("name", "seeds"), [("diskless-racks", range(1)), ("diskless-racks-storm", range(1))]
)
def test_records_stay_in_their_racks_and_in_their_order(name: str, seeds: range) -> None:
    scenario = SCENARIOS[name]()
    failed = {seed: found for seed in seeds if (found := run_seed(scenario, seed).violations)}
    assert not failed, f"repeat with: python -m moldau.simulation --node {name} --seed {min(failed)}"


def each_broker_reads_for_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClusterRacks, "reader_of", lambda self, key, writer: None)


def nothing_is_kept_for_the_rack(patch: pytest.MonkeyPatch) -> None:
    got = RackObjects._got

    def forgetting(self: RackObjects, *given: object) -> None:
        got(self, *given)  # type: ignore[arg-type]
        self._kept.clear()

    patch.setattr(RackObjects, "_got", forgetting)


def everybody_is_shown_the_leader_of_the_metadata(patch: pytest.MonkeyPatch) -> None:
    assert DISKLESS.rack_brokers is not None
    blind = replace(
        DISKLESS.rack_brokers, leader=lambda _, topic, index, *rest: topic.partitions[index].leader
    )
    patch.setattr(cluster_racks, "kind_of", lambda topic: replace(kind_of(topic), rack_brokers=blind))


FLAWS = [
    each_broker_reads_for_itself,
    nothing_is_kept_for_the_rack,
    everybody_is_shown_the_leader_of_the_metadata,
]


@pytest.mark.parametrize("flaw", FLAWS, ids=[flaw.__name__ for flaw in FLAWS])
def test_a_flaw_is_caught(
    flaw: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw(monkeypatch)
    scenario = replace(SCENARIOS["diskless-racks"](), time_limit_s=100.0)
    assert run_seed(scenario, 0).violations
