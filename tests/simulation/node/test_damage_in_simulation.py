"""Files are damaged before a start of the node. Either the start ends with an error that names the file, or
the node reports every loss. Mutants are detected."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.protocol.partitions import TopicPartition
from moldau.simulation.damage.checks import Contents, Reports, check_refusal, check_start
from moldau.simulation.damage.files import FileDamage, Way, kind_of
from moldau.simulation.damage.story import End, scenario
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS
from moldau.storage.critical_logs.integrity_check import OpenableLog
from moldau.storage.critical_logs.recovery_report import RecoveryReport
from moldau.storage.log import segment_loading

pytestmark = pytest.mark.simulation

MUTANT_SEEDS = 4


@pytest.mark.parametrize(
    ("name", "seeds"), [("kill-damage", (0, 1)), ("stop-damage", (0, 1)), ("power-damage", (1, 2, 3, 9, 137))]
)
def test_damage_is_found_or_costs_nothing(name: str, seeds: tuple[int, ...]) -> None:
    played = SCENARIOS[name]()
    failed = {seed: found for seed in seeds if (found := run_seed(played, seed).violations)}
    assert not failed, f"repeat with: python -m moldau.simulation --node {name} --seed {min(failed)}"


def test_a_damaged_cache_is_read_from_objects_again() -> None:
    assert run_seed(scenario(End.STOP, "diskless/"), 0).violations == []


def cut_in_silence(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the node does not check the logs whose loss would cause deletions."""
    patch.setattr(segment_loading, "check_segments", lambda *_: OpenableLog())


def report_nothing(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: losses of records are not reported."""
    patch.setattr(RecoveryReport, "add", lambda *_args, **_named: None)


def trust_the_cache(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the node serves cached bytes of an earlier process without a check."""
    patch.setattr(PartitionCache, "verify", lambda *_: None)


@pytest.mark.parametrize(
    ("mutate", "kinds", "seed"),
    [
        (cut_in_silence, "__cluster_metadata/.log", 1),
        (cut_in_silence, "__consumer_offsets/.log", 1),
        (report_nothing, "classic/.log", 0),
        (trust_the_cache, "diskless/.log", 0),
    ],
)
@pytest.mark.usefixtures("quiet_nodes")
def test_a_mutant_is_caught(mutate: Callable[[pytest.MonkeyPatch], None], kinds: str, seed: int) -> None:
    """``seed`` detects the mutant. If a change of the story has made this seed useless, one of the next seeds
    detects it."""
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        caught = any(
            run_seed(scenario(End.KILL, kinds), each).violations for each in range(seed, seed + MUTANT_SEEDS)
        )
    assert caught, f"{mutate.__doc__} is missed"


# The check ---------------------------------------------------------------------------------------

CLASSIC, DISKLESS = TopicPartition("classic", 0), TopicPartition("diskless", 0)
RECORDS = [(0, b"a"), (1, b"b")]
BEFORE = Contents({"classic": 1, "diskless": 1}, {CLASSIC: RECORDS, DISKLESS: RECORDS}, {}, {"object"})
LOG = FileDamage("/data/classic-0/00000000000000000000.log", Way.FLIPPED, "")
CACHE = FileDamage("/data/diskless-0/00000000000000000000.log", Way.FLIPPED, "")
CHECKPOINT = FileDamage("/data/recovery-point-offset-checkpoint", Way.REMOVED, "")
REPORTED = Reports(["ERROR /data/classic-0: cut"], "{'recovery': '/data/classic-0: cut'}")
SILENT = Reports([], "{}")


def violations(
    damage: FileDamage, reports: Reports = SILENT, objects: set[str] | None = None, **changes: Any
) -> list[str]:
    after = Contents(
        changes.get("topics", BEFORE.topics),
        {**BEFORE.records, **changes.get("records", {})},
        changes.get("unreadable", {}),
    )
    keys = {"object"} if objects is None else objects
    return check_start([damage], BEFORE, after, reports, keys, may_lose={"classic"})


def test_a_start_that_keeps_everything_is_right() -> None:
    assert violations(CHECKPOINT) == []


def test_a_reported_loss_of_a_damaged_log_is_right() -> None:
    assert violations(LOG, REPORTED, records={CLASSIC: RECORDS[:1]}) == []


def test_an_error_of_consumers_counts_as_a_report() -> None:
    assert violations(LOG, records={CLASSIC: RECORDS[:1]}, unreadable={CLASSIC: "offset 1: corrupt"}) == []


@pytest.mark.parametrize(
    ("damage", "reports", "changes", "text"),
    [
        (LOG, SILENT, {"records": {CLASSIC: RECORDS[:1]}}, "no log line names it"),
        (LOG, Reports(REPORTED.log_lines, "{}"), {"records": {CLASSIC: []}}, "health page does not name it"),
        (CHECKPOINT, REPORTED, {"records": {CLASSIC: []}}, "nothing of it was damaged"),
        (CACHE, REPORTED, {"records": {DISKLESS: []}}, "in the object store"),
        (CACHE, REPORTED, {"unreadable": {DISKLESS: "corrupt"}}, "in the object store"),
        (LOG, REPORTED, {"records": {CLASSIC: [(0, b"a"), (1, b"c")]}}, "1 other records"),
        (LOG, REPORTED, {"topics": {"classic": 1}}, "topic diskless has 0 of 1"),
        (LOG, REPORTED, {"objects": set()}, "object object holds live records and is deleted"),
    ],
)
def test_forbidden_states_are_detected(damage: FileDamage, reports: Reports, changes: Any, text: str) -> None:
    assert any(text in found for found in violations(damage, reports, **changes))


def test_missing_metadata_are_reported_if_health_names_their_file() -> None:
    metadata = FileDamage("/data/__diskless_metadata-0/00000000000000000000.log", Way.FLIPPED, "")
    unreadable = {DISKLESS: "leader_not_available"}
    named = Reports([], f"{metadata.path} is damaged")
    assert violations(metadata, named, records={DISKLESS: []}, unreadable=unreadable) == []
    assert violations(metadata, SILENT, records={DISKLESS: []}, unreadable=unreadable)
    assert violations(metadata, named, records={DISKLESS: []})
    assert violations(metadata, named, records={DISKLESS: []}, unreadable=unreadable, objects=set())


def test_a_refusal_names_a_damaged_file() -> None:
    assert check_refusal([LOG], ValueError(f"{LOG.path} is damaged")) == []
    assert check_refusal([CHECKPOINT], ValueError(f"{CHECKPOINT.path} is damaged")) == []
    assert check_refusal([LOG], ValueError("a file is damaged"))
    assert check_refusal([CHECKPOINT], ValueError("/data is damaged"))
    assert check_refusal([LOG, CACHE], TimeoutError("no answer"))


def test_kinds_of_files_have_no_offsets_and_no_ids() -> None:
    assert kind_of("/data/classic-1/00000000000000000042.log") == "classic/.log"
    assert kind_of("/data/__cluster_metadata-0/00000000000000000042-0000000001.checkpoint") == (
        "__cluster_metadata/.checkpoint"
    )
    assert kind_of(f"/data/remote-log-index-cache/7_{uuid4()}.indexes") == "remote-log-index-cache/.indexes"
    assert kind_of("/data/meta.properties") == "/meta.properties"
