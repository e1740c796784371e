"""Closes a log durably and renames its folder, so that another owner can open it."""

from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.log.partition_log import PartitionLog


async def release_log(machine: Machine, log: PartitionLog, path: str) -> str:
    """Close a log and rename its folder to ``path`` in the same log directory. Both changes are durable.

    Operations that already use the log's files are completed first, and later operations fail. Raises
    ``KafkaError``, caused by an ``OSError``, when the disk fails.
    """

    def release() -> None:
        log.close()
        log.epochs.end_file()
        try:
            machine.disk.rename(log.directory, path)
            machine.disk.sync_dir(path.rpartition("/")[0])
        except OSError as error:
            reason = f"renaming {log.directory} failed: {error.strerror or error}"
            raise KafkaError(ErrorCode.kafka_storage_error, reason) from error

    await log.flush()
    async with log.segments.changing:
        await machine.workers.run(release)
    return path
