"""Kafka's own DumpLogSegments reads our files, with every codec and every control record."""

import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from moldau.records import Compression, Record, build_batch, set_log_append_time
from moldau.records.control import (
    KRaftVersion,
    LeaderChange,
    RecordedVoter,
    RecordedVoters,
    SnapshotFooter,
    SnapshotHeader,
    SnapshotOrigin,
    VoterEndpoint,
    VotersRecordEntry,
    build_control_batch,
    build_end_transaction_marker,
)
from moldau.records.recompression import TargetCompression, recompressed
from moldau.records.record import open_batch
from moldau.runtime.steps import exhaust

JARS = Path(__file__).parents[2] / ".tools" / "jars"


def dumped(log: bytes, folder: Path) -> str:
    java = shutil.which("java")
    if java is None or not JARS.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail("java or Kafka's jars are missing")
        pytest.skip("java or Kafka's jars are missing")
    path = folder / "00000000000000000000.log"
    path.write_bytes(log)
    command = [java, "-Xmx128m", "-cp", f"{JARS}/*", "kafka.tools.DumpLogSegments"]
    options = ["--files", str(path), "--print-data-log", "--deep-iteration"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=250, check=False)
    assert "Exception" not in done.stdout + done.stderr, done.stderr
    assert "isvalid: false" not in done.stdout
    return done.stdout


@pytest.mark.java
def test_kafka_reads_our_files(tmp_path: Path) -> None:
    records = [
        Record(0, 1_700_000_000_000 + index, b"key-%d" % index, b"value-%d" % index * 99, (("h", b"x"),))
        for index in range(400)
    ]
    log = b""
    for number, codec in enumerate(Compression):
        batch = bytearray(build_batch(records, base_offset=number * 400, compression=codec))
        if codec is Compression.ZSTD:
            set_log_append_time(batch, 0, 1_800_000_000_000)
        log += batch
    for number, codec in enumerate(Compression, start=5):
        batch = build_batch(records, base_offset=number * 400, compression=Compression((codec + 1) % 5))
        header, payload = open_batch(batch)
        target = TargetCompression(codec)
        log += exhaust(recompressed(header, payload, header.max_timestamp, target, len(batch) * 99))
    log += build_end_transaction_marker(
        9, 1, committed=False, coordinator_epoch=4, timestamp=5, base_offset=4_000
    )
    directory = uuid.UUID(int=77)
    voter = VotersRecordEntry(1, directory, (VoterEndpoint("CONTROLLER", "localhost", 9093),))
    contents = [
        LeaderChange(1, (RecordedVoter(1), RecordedVoter(2)), (RecordedVoter(1),)),
        KRaftVersion(1),
        RecordedVoters((voter,)),
        SnapshotHeader(5, origin=SnapshotOrigin("topic", 0, directory, 5, 1)),
        SnapshotFooter(),
    ]
    log += build_control_batch(contents, timestamp=6, base_offset=4_001)
    text = dumped(log, tmp_path)
    lines = [line for line in text.splitlines() if line.startswith("| offset: ")]
    assert len(lines) == 10 * 400 + 1 + len(contents)
    for number, codec in enumerate(Compression):
        assert f"compresscodec: {codec.name.lower()}" in text
        for end in (number * 400 + 399, number * 400 + 2_399):
            assert f"key: key-399 payload: {'value-399' * 99}" in lines[end]
        assert text.count(f"compresscodec: {codec.name.lower()}") >= 2
    assert "endTxnMarker: ABORT coordinatorEpoch: 4" in lines[4_000]
    names = ["LeaderChange", "KRaftVersion", "KRaftVoters", "SnapshotHeader", "SnapshotFooter"]
    for line, name in zip(lines[4_001:], names, strict=True):
        assert f" {name} {{" in line.replace(":", "")
    assert '"voters":[{"voterId":1},{"voterId":2}]' in lines[4_001]
