"""Folders that Kafka's StorageTool has formatted. The folder of the metadata log is created at the first
start."""

import base64
import pathlib

import pytest

from moldau.cluster.folders.folder_contents import BOOTSTRAP_FILE_NAME
from moldau.cluster.folders.kafka_bootstrap import (
    KAFKA_BOOTSTRAP_FILE,
    complete_kafka_format,
    kafka_bootstrap_records,
)
from moldau.cluster.folders.meta_properties import FormatError
from moldau.cluster.image.delta import image_of
from moldau.cluster.image.image import EMPTY_IMAGE
from moldau.cluster.quorum_log import data_batches
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.protocol.records.metadata import RECORDS
from moldau.runtime.files.local_disk import LocalDisk

OF_KAFKA = base64.b64decode(
    "AAAAAAAAAAAAAABHAAAAAAKfRe45ACAAAAAAAAABogcVD/oAAAGiBxUP+v//////////////////AAAAASoAAAAIAAAAAxYA"
    "AAAAAAAAAAAAAAAAAAAAAAAAAQAAAPEAAAAAAgndiewAAAAAAAUAAAGiBxUQlAAAAaIHFRCU//////////////////8AAAAG"
    "OgAAAAEuAQwAEW1ldGFkYXRhLnZlcnNpb24AHQAAWgAAAgFOAQwAIWVsaWdpYmxlLmxlYWRlci5yZXBsaWNhcy52ZXJzaW9u"
    "AAEAADQAAAQBKAEMAA5ncm91cC52ZXJzaW9uAAEAADQAAAYBKAEMAA5zaGFyZS52ZXJzaW9uAAEAADgAAAgBLAEMABBzdHJl"
    "YW1zLnZlcnNpb24AAQAAQAAACgE0AQwAFHRyYW5zYWN0aW9uLnZlcnNpb24AAgAAAAAAAAAAAAcAAAA/AAAAAAK40d2dACAA"
    "AAAAAAABogcVEJYAAAGiBxUQlv//////////////////AAAAARoAAAAIAAAABAYAAAAA"
)
"""The content of the folder as StorageTool of Kafka 4.2.0 writes it, with its default levels."""
SUPPORTED = {"metadata.version": 29, "eligible.leader.replicas.version": 1, "transaction.version": 2}
DISK = LocalDisk()


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / KAFKA_BOOTSTRAP_FILE).write_bytes(OF_KAFKA)
    return tmp_path


def levels_in(folder: pathlib.Path) -> dict[str, int]:
    snapshot = (folder / CLUSTER_METADATA_FOLDER / BOOTSTRAP_FILE_NAME).read_bytes()
    records = [
        RECORDS.decode(value) for batch in data_batches([memoryview(snapshot)]) for value in batch.values
    ]
    return {name: int(level) for name, level in image_of(records, EMPTY_IMAGE).features.items()}


def test_the_metadata_folder_is_made_with_the_levels_that_are_supported(
    folder: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    complete_kafka_format(DISK, [str(folder)], str(folder), 1)
    assert levels_in(folder) == SUPPORTED
    assert "group.version 1, which is left out" in caplog.text
    (folder / CLUSTER_METADATA_FOLDER / BOOTSTRAP_FILE_NAME).unlink()
    (folder / CLUSTER_METADATA_FOLDER).rmdir()
    complete_kafka_format(DISK, [str(folder)], str(folder), 1)
    assert not (folder / CLUSTER_METADATA_FOLDER).exists()


def test_a_lost_metadata_folder_beside_data_is_not_created_again(folder: pathlib.Path) -> None:
    (folder / "topic-0").mkdir()
    (folder / "topic-0" / "00000000000000000000.log").write_bytes(b"")
    complete_kafka_format(DISK, [str(folder)], str(folder), 1)
    assert not (folder / CLUSTER_METADATA_FOLDER).exists()


def test_a_damaged_file_is_named(folder: pathlib.Path) -> None:
    (folder / KAFKA_BOOTSTRAP_FILE).write_bytes(OF_KAFKA[:200] + b"?" + OF_KAFKA[201:])
    with pytest.raises(FormatError, match=r"bootstrap\.checkpoint is damaged"):
        kafka_bootstrap_records(DISK, str(folder))


def test_a_folder_that_kafka_did_not_format_has_no_such_records(tmp_path: pathlib.Path) -> None:
    assert kafka_bootstrap_records(DISK, str(tmp_path)) == []
