"""Each kind of addition is declared in one file, and some kinds also need a line in a second file
(``docs/architecture/adding.md``). If this line is missing, an error names the second file."""

import ast
import pathlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.cli.dump.decoders import TOPIC_DECODERS
from moldau.cluster.internal_topics import STATE_TOPICS, InternalTopic, StateRetention, StateTopic
from moldau.config.broker import BROKER
from moldau.coordinators.hosted import HostedKind
from moldau.simulation.scenario_table import SCENARIOS

SOURCE = pathlib.Path(__file__).parents[2] / "src/moldau"


def classes_with_base(folder: str, *bases: str) -> Iterator[str]:
    """The names of the classes in a folder that inherit from a class in ``bases``."""
    for path in sorted((SOURCE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                inherited = [each.value if isinstance(each, ast.Subscript) else each for each in node.bases]
                names = {each.id for each in inherited if isinstance(each, ast.Name)}
                if names & set(bases):
                    yield node.name


def called_in(*places: str) -> set[str]:
    """The names of the functions that the files in ``places`` call. A place is a file or a folder."""
    files = [file for each in places for file in [SOURCE / each, *sorted((SOURCE / each).rglob("*.py"))]]
    return {
        node.func.id
        for file in files
        if file.is_file()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def test_every_subsystem_has_a_line_in_the_composition() -> None:
    composed = called_in("server/composition.py")
    for name in classes_with_base("server/subsystems", "Subsystem", "HostedCoordinators"):
        assert name in composed, f"add {name} to compose_broker (server/composition.py)"


def test_every_kind_of_coordinator_is_hosted() -> None:
    made = called_in("server/composition.py", "server/subsystems")
    for name in classes_with_base("coordinators", "HostedKind"):
        assert name in made, f"host it: HostedCoordinators({name}(kind_context(context))) in the composition"


def stories() -> Iterator[str]:
    """The names of the functions in ``simulation/`` that make a scenario and need no argument."""
    for path in sorted((SOURCE / "simulation").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                is_story = isinstance(node.returns, ast.Name) and node.returns.id == "Scenario"
                if is_story and len(node.args.args) == len(node.args.defaults):
                    yield node.name


def test_every_story_has_a_row() -> None:
    """``make simulate`` runs only the scenarios that have a row in ``SCENARIOS``."""
    missing = [name for name in stories() if name.replace("_", "-") not in SCENARIOS]
    assert not missing, f"add rows for {missing} to SCENARIOS (simulation/scenario_table.py)"


def test_a_kind_of_coordinator_over_a_topic_without_a_row_is_refused() -> None:
    topic = StateTopic(
        name="__audit_state", retention=StateRetention.COMPACTED, factor_key="audit.factor", saved_in_step=0
    )
    runtime = cast(Any, SimpleNamespace(kind=SimpleNamespace(topic=topic)))
    with pytest.raises(ValueError, match="__audit_state has coordinators, and no row in STATE_TOPICS"):
        HostedKind("audit", runtime, InternalTopic.of(topic, 1, 1))


def test_the_row_of_a_topic_of_coordinators_is_complete() -> None:
    for topic in STATE_TOPICS.values():
        assert topic.factor_key in BROKER, f"declare {topic.factor_key} in config/keys"
        assert topic.records is not None or topic.name in TOPIC_DECODERS, (
            f"give {topic.name} its records, or a decoder in cli/dump/decoders.py: dump-log shows bytes"
        )
