"""A rolling upgrade and downgrade under load, in virtual time. The tests check three rules. No acknowledged
record is lost. No level is raised too early. No node serves clients with a level that it does not support."""

from collections.abc import Callable

import pytest

from moldau.cluster.decisions import features
from moldau.cluster.publisher import MetadataPublisher
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

SEEDS = [("upgrade", 0), ("upgrade", 1), ("upgrade-separate", 0)]
"""Each entry is a story and a seed. The first story ends with the former version, and the second story ends
with a raised metadata.version."""


@pytest.mark.parametrize(("story", "seed"), SEEDS)
def test_two_versions_work_together(story: str, seed: int) -> None:
    found = run_seed(SCENARIOS[story](), seed).violations
    assert not found, f"repeat with: python -m moldau.simulation --node {story} --seed {seed}"


def raised_too_early(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a feature level is raised while some nodes still have the former version."""
    patch.setattr(features, "reasons_against", lambda *_: iter(()))


def unknown_level_followed(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a node of the former version follows metadata although it may not support their
    feature level."""
    patch.setattr(MetadataPublisher, "check_levels", lambda *_: None)


FLAWS = [(raised_too_early, 1), (unknown_level_followed, 0)]
"""Each flaw with a seed that detects it soon."""


@pytest.mark.parametrize(("flaw", "seed"), FLAWS, ids=[flaw.__name__ for flaw, _ in FLAWS])
def test_a_flaw_is_caught(
    flaw: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw(monkeypatch)
    # The test first runs ``seed``, which detects the flaw. If a change of the code has changed all histories,
    # one of the next nine seeds must detect the flaw.
    assert any(run_seed(SCENARIOS["upgrade"](), one).violations for one in range(seed, seed + 10))
