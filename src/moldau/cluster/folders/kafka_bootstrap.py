"""``bootstrap.checkpoint``: the first records of a cluster whose folders Kafka's StorageTool has formatted.

The tool writes the file next to ``meta.properties``. The node creates the folder of the metadata log when it
starts for the first time. With ``--standalone`` the tool also creates that folder. The folder then has the
voters but no feature levels.
"""

import logging
from collections.abc import Sequence
from typing import Final

from moldau.cluster.decisions.features import METADATA_VERSION_LATEST, SUPPORTED_FEATURES
from moldau.cluster.folders.folder_contents import BOOTSTRAP_FILE_NAME, data_in
from moldau.cluster.folders.formatter import bootstrap_snapshot
from moldau.cluster.folders.meta_properties import FormatError
from moldau.cluster.image.image import METADATA_VERSION_FEATURE
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.protocol.records.metadata import RECORDS, FeatureLevelRecord
from moldau.protocol.schema import Message
from moldau.records.batch import check_batch, iter_headers
from moldau.records.record import iter_records
from moldau.runtime import Disk, KafkaError

logger = logging.getLogger(__name__)

KAFKA_BOOTSTRAP_FILE: Final = "bootstrap.checkpoint"


def kafka_bootstrap_records(disk: Disk, metadata_dir: str) -> list[Message]:
    """The records of the file; no records if there is no file. Raises ``FormatError`` for a damaged file.

    If this version of Moldau does not support a feature level in the file, a warning is logged, the level is
    left out, and the cluster begins without the feature.
    """
    path = f"{metadata_dir}/{KAFKA_BOOTSTRAP_FILE}"
    if not disk.exists(path):
        return []
    try:
        records = _decoded(disk.read(path))
    except (KafkaError, ProtocolError, ValueError) as error:
        raise FormatError(f"{path} is damaged: {error}. Format the folder again.") from error
    return [record for record in records if _is_supported(record, path)]


def complete_kafka_format(disk: Disk, log_dirs: Sequence[str], metadata_dir: str, now_ms: int) -> None:
    """Create the folder of the metadata log before a node's first start, because Kafka's StorageTool does not
    create this folder.

    Then ``bootstrap.checkpoint`` is removed, so that the folder is created only once. If the folder is
    missing at a later start, the start fails because the metadata log is lost, as on nodes that Moldau has
    formatted. Raises ``FormatError``.
    """
    folder = f"{metadata_dir}/{CLUSTER_METADATA_FOLDER}"
    if disk.is_dir(folder) or any(data_in(disk, each) for each in log_dirs):
        return
    records = kafka_bootstrap_records(disk, metadata_dir)
    if not records:
        return
    levels = {each.name: each.feature_level for each in records if isinstance(each, FeatureLevelRecord)}
    version = levels.get(METADATA_VERSION_FEATURE, METADATA_VERSION_LATEST)
    others = [record for record in records if getattr(record, "name", None) != METADATA_VERSION_FEATURE]
    disk.make_dirs(folder)
    disk.sync_dir(metadata_dir)
    content = bootstrap_snapshot(others, version, now_ms, defaults=False)
    disk.write_atomically(f"{folder}/{BOOTSTRAP_FILE_NAME}", content)
    disk.remove(f"{metadata_dir}/{KAFKA_BOOTSTRAP_FILE}")


def _decoded(content: bytes) -> list[Message]:
    records = []
    for position, header in iter_headers(content):
        check_batch(content, position)
        if not header.is_control:
            batch = memoryview(content)[position : position + header.size_bytes]
            records += [RECORDS.decode(each.value) for each in iter_records(batch) if each.value is not None]
    return records


def _is_supported(record: Message, path: str) -> bool:
    if not isinstance(record, FeatureLevelRecord):
        return True
    feature = next((each for each in SUPPORTED_FEATURES if each.name == record.name), None)
    if feature is not None and feature.supports(record.feature_level):
        return True
    if record.feature_level:
        logger.warning("%s has %s %d, which is left out", path, record.name, record.feature_level)
    return False
