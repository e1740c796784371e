"""Kafka's own DumpLogSegments reads our producer snapshots."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from moldau.storage.producers.producer_snapshot import encode_producer_snapshot
from moldau.storage.producers.producer_state import BatchMetadata, ProducerEntry

JARS = Path(__file__).parents[3] / ".tools" / "jars"


@pytest.mark.java
def test_kafka_reads_our_snapshots(tmp_path: Path) -> None:
    java = shutil.which("java")
    if java is None or not JARS.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail("java or Kafka's jars are missing")
        pytest.skip("java or Kafka's jars are missing")
    path = tmp_path / "00000000000000000777.snapshot"
    entries = [ProducerEntry(9, 1, 4, 1_700, 770, [BatchMetadata(2, 776, 5, 1_700)]), ProducerEntry(10, 0)]
    # A producer has an entry for each of its last batches. Kafka uses the last one.
    entries.append(
        ProducerEntry(11, 0, -1, 9, None, [BatchMetadata(0, 777, 0, 8), BatchMetadata(1, 778, 0, 9)])
    )
    path.write_bytes(encode_producer_snapshot(entries))
    command = [java, "-Xmx128m", "-cp", f"{JARS}/*", "kafka.tools.DumpLogSegments", "--files", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout.splitlines()[1:] == [
        "producerId: 9 producerEpoch: 1 coordinatorEpoch: 4 currentTxnFirstOffset: OptionalLong[770]"
        " lastTimestamp: 1700 firstSequence: 2147483645 lastSequence: 2 lastOffset: 776 offsetDelta: 5"
        " timestamp: 1700",
        "producerId: 10 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong.empty"
        " lastTimestamp: -1 ",
        *(
            "producerId: 11 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong.empty"
            f" lastTimestamp: {8 + number} firstSequence: {number} lastSequence: {number}"
            f" lastOffset: {777 + number} offsetDelta: 0 timestamp: {8 + number}"
            for number in range(2)
        ),
    ], done.stderr
