"""The first start of a node. Its object store is checked before the node writes anything.

At later starts the store is checked when the broker starts (``DisklessManager.start``). On a first start,
such a late check would not be enough: the node would already have written a new cluster id to the folders,
and records to the metadata log.
"""

from typing import Final

from moldau.cluster.folders.folder_contents import data_in
from moldau.cluster.folders.meta_properties import FILE_NAME, FormatError, read_meta_properties
from moldau.config.broker import BrokerConfig
from moldau.diskless.store_claim import StoreClaim, refuse_claimed
from moldau.metrics import Meters
from moldau.objects import RetryPolicy, StorageError, open_storage
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.server.subsystems.diskless.settings import is_enabled, manager_settings

__all__ = ["refuse_foreign_store"]

_ONE_ATTEMPT: Final = RetryPolicy(deadline_ms=2_000, attempt_timeout_ms=2_000)


async def refuse_foreign_store(config: BrokerConfig, machine: Machine) -> None:
    """Check that no other cluster owns the object store of a node. Does nothing if the node has run before.

    Errors of the configuration, the folders and the store are not reported here, because the start reports
    them. Raises ``KafkaError(kafka_storage_error)``, with a sentence for the operator, if the store belongs
    to another cluster.
    """
    folder, disk = config.metadata_log_dir, machine.disk
    if not (config.is_broker and is_enabled(config)):
        return
    try:
        formatted = read_meta_properties(disk, folder)
        has_run = disk.exists(f"{folder}/{CLUSTER_METADATA_FOLDER}/quorum-state") or bool(
            data_in(disk, folder)
        )
        if has_run:
            return
        settings = manager_settings(config)
        storage = open_storage(settings.storage, machine, Meters(), policy=_ONE_ATTEMPT)
    except (FormatError, OSError, StorageError, ValueError):
        return
    try:
        if formatted is None:
            await refuse_claimed(storage, settings.storage.url, folder)
        else:
            source = f"{folder}/{FILE_NAME}"
            claim = StoreClaim(storage, formatted.cluster_id, settings.storage.url, source=source)
            await claim.refuse_foreign()
    except StorageError as error:
        if not error.transient:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
    finally:
        await storage.close()
