"""Kafka's own DumpLogSegments reads a built segment and its indexes. It reports no fault."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from wal_batches import Sent, wal_batches

from moldau.storage.folders.file_names import segment_file
from moldau.tiered.storage.segment_builder import build_segment

JARS = Path(__file__).parents[3] / ".tools" / "jars"
NOW_MS = 1_700_000_000_000


def dump(files: list[Path], *options: str) -> str:
    java = shutil.which("java")
    if java is None or not JARS.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail("java or Kafka's jars are missing")
        pytest.skip("java or Kafka's jars are missing")
    names = ",".join(map(str, files))
    done = subprocess.run(
        [java, "-Xmx128m", "-cp", f"{JARS}/*", "kafka.tools.DumpLogSegments", "--files", names, *options],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.java
def test_kafka_finds_nothing_wrong_with_a_built_segment(tmp_path: Path) -> None:
    batches = []
    for number in range(200):
        batches.append(
            Sent(
                records=number % 5 + 1,
                producer=[-1, 5, 9][number % 3],
                timestamp_ms=NOW_MS - number * 37 % 100,
                append_time_ms=NOW_MS + number if number % 4 == 3 else -1,
                codec=number % 5,
                size=80,
            )
        )
        if number % 10 == 9:
            batches += [Sent(producer=7, transactional=True), Sent(producer=7, marker=number % 20 == 9)]
    first_offset = 2**32 + 5
    built = build_segment(wal_batches(batches, first_offset), index_interval_bytes=1000)
    name = tmp_path / segment_file(first_offset, "")
    (log := name.with_suffix(".log")).write_bytes(built.log)
    (offsets := name.with_suffix(".index")).write_bytes(built.offset_index)
    (times := name.with_suffix(".timeindex")).write_bytes(built.time_index)
    (aborted := name.with_suffix(".txnindex")).write_bytes(built.transaction_index)
    (producers := tmp_path / segment_file(built.end_offset + 1, ".snapshot")).write_bytes(
        built.producer_snapshot
    )
    shown = dump([log, aborted, producers], "--deep-iteration")
    assert shown.count("isvalid: true") == len(batches)
    assert "isvalid: false" not in shown
    assert f"offset: {built.end_offset} " in shown
    assert shown.count("producerId: 7 firstOffset") == 10
    assert shown.count("coordinatorEpoch") >= 3
    checked = dump([offsets, times], "--index-sanity-check")
    assert checked.count("passed sanity check") == 2
    dump([offsets, times], "--verify-index-only")
