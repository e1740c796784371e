"""The folders of partitions that a node finds in its log folders when it starts.

Two log folders may contain a folder of the same partition. For example, a log folder is offline when a topic
is deleted, and another topic gets the name of the deleted topic. The new topic is created in another log
folder. Later the offline log folder works again. Only the metadata show which of the two folders is the log
of the partition. Therefore the logs of such a partition are not opened at the start.
"""

import logging
import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.folders.directory_failures import DirectoryFailures
from moldau.storage.folders.file_names import (
    folder_of,
    is_deleted_folder,
    is_other_folder,
    is_stray_folder,
    partition_of,
    stray_folder,
)
from moldau.storage.folders.late_removals import LateRemovals
from moldau.storage.folders.log_directory import LogDirectory, LogDirectoryError
from moldau.storage.folders.log_folders import NewLog
from moldau.storage.folders.partition_metadata import (
    MalformedMetadataError,
    is_misread,
    read_partition_metadata,
)

logger = logging.getLogger(__name__)

_NOTHING: Final[dict[LogDirectory, uuid.UUID | None]] = {}


class FoundFolders:
    """Finds the partitions in the log folders of a node, and partitions with several folders."""

    def __init__(
        self,
        machine: Machine,
        directories: Sequence[LogDirectory],
        failures: DirectoryFailures,
        removals: LateRemovals,
    ) -> None:
        self._machine = machine
        self._disk = machine.disk
        self._directories = directories
        self._failures = failures
        self._removals = removals
        self._repeated: dict[TopicPartition, dict[LogDirectory, uuid.UUID | None]] = {}
        """The partitions with several folders. For each of their log folders, the topic id in its folder."""

    def read(self) -> dict[LogDirectory, list[TopicPartition]]:
        """Return the partitions in each online log folder, without the partitions that have several folders.
        Schedule the removal of folders that were renamed before the start. This call blocks.

        Raises :class:`LogDirectoryError` if the topic id of one of several folders is damaged.
        """
        found: dict[LogDirectory, list[TopicPartition]] = {}
        for directory in self._directories:
            if directory.is_online:
                with self._failures.disk_work(directory):
                    found[directory] = self._partitions_in(directory)
                    directory.was_read = True
        places: dict[TopicPartition, list[LogDirectory]] = {}
        for directory, names in found.items():
            for name in names:
                places.setdefault(name, []).append(directory)
        for name, several in places.items():
            if len(several) > 1:
                self._repeated[name] = {each: self._topic_id(each, name) for each in several}
        return {
            directory: [name for name in names if name not in self._repeated]
            for directory, names in found.items()
        }

    def _partitions_in(self, directory: LogDirectory) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        for name in self._disk.list(directory.path):
            if not self._disk.is_dir(f"{directory.path}/{name}") or is_other_folder(name):
                continue
            topic_partition = partition_of(name)
            if is_deleted_folder(name):
                # After an interrupted exchange, the log's copy may be in a folder that is offline.
                if all(each.is_online for each in self._directories):
                    self._removals.add(f"{directory.path}/{name}", 0)
            elif is_stray_folder(name):
                self._removals.add_stray(f"{directory.path}/{name}")
            elif topic_partition is None:
                logger.warning("skipping %s/%s: it is not a partition's folder", directory.path, name)
            else:
                found.append(topic_partition)
        return found

    def _topic_id(self, directory: LogDirectory, name: TopicPartition) -> uuid.UUID | None:
        path = f"{directory.path}/{folder_of(name)}"
        try:
            return read_partition_metadata(self._disk, path)
        except MalformedMetadataError as error:
            raise LogDirectoryError(f"partition folder {path} cannot be loaded: {error}") from error

    def repeated(self) -> Iterable[TopicPartition]:
        """The partitions that still have several folders."""
        return tuple(self._repeated)

    def is_repeated(self, name: TopicPartition) -> bool:
        """Whether a partition still has several folders."""
        return name in self._repeated

    def home_of(self, new: NewLog) -> LogDirectory | None:
        """Return the log folder with the log of a partition that has several folders. The result is None if
        none of the folders belongs to the partition's topic.

        The topic id decides. If several folders have this id, one of them was created while the other one was
        offline. The metadata then name the directory of the replica. Raises
        ``KafkaError(kafka_storage_error)`` if they name no directory.
        """
        ids = self._repeated.get(new.topic_partition, _NOTHING)
        homes = [each for each, id in ids.items() if id == new.topic_id] or [
            each for each, id in ids.items() if id is None or is_misread(id, new.topic_id)
        ]
        wanted = new.assignment.directory_id
        named = [each for each in homes if wanted is not None and each.directory_id == wanted]
        if len(homes) > 1 and not named and not new.config.is_cache:
            paths = " and ".join(f"{each.path}/{folder_of(new.topic_partition)}" for each in homes)
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"{paths} belong to the same partition. Move one of them out of its log folder.",
            )
        return next(iter(named or homes), None)

    async def put_aside(self, name: TopicPartition, kept: LogDirectory | None = None) -> list[LogDirectory]:
        """Rename the folders of a partition that has several folders, except the folder in ``kept``. Returns
        the log folders of the renamed folders."""
        others = [each for each in self._repeated.pop(name, _NOTHING) if each is not kept]
        for directory in others:
            target = f"{directory.path}/{stray_folder(name, self._machine.entropy.uuid4())}"
            with self._failures.disk_work(directory):
                await self._machine.workers.run(self._rename, directory, name, target)
                self._removals.add_stray(target)
                logger.warning(
                    "%s is not the log of %s in the metadata: its folder is kept as %s",
                    f"{directory.path}/{folder_of(name)}",
                    name,
                    target,
                )
        return others

    def _rename(self, directory: LogDirectory, name: TopicPartition, target: str) -> None:
        self._disk.rename(f"{directory.path}/{folder_of(name)}", target)
        self._disk.sync_dir(directory.path)
