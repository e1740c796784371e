"""Commands of golden scripts about partition chunks (see ``controller_script``).

chunk NAME-0 by=1 at=N on=2,3 [sync=2,3] [first=N] [stop=N] [leader_epoch=N] [partition_epoch=N]
      [broker_epoch=N] [twice]
                the leader ends the active chunk, and the next chunk begins at offset ``at``
move-chunk NAME-0 at=N to=2,3|cancel [epoch=N] [twice]
                move an inactive chunk to other brokers, or cancel its move
report-chunk 3 NAME-0 at=N dir=N|lost [broker_epoch=N]
                a broker reports that its copy of a chunk is complete or lost
drop-chunks NAME-0 by=1 below=N [leader_epoch=N]
                the leader reports that the partition now begins at offset ``below``
"""

import uuid

from moldau.cluster.controller.controller import Controller
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.partition import PartitionRegistration
from moldau.protocol.own.chunks import alter_chunk_assignments, create_chunks, drop_chunks, report_chunks
from moldau.protocol.schema import Message

MISSING = uuid.UUID(int=999_999)


def shown_chunk(chunk: ChunkRegistration) -> str:
    """The output line for an inactive chunk."""
    moving = "".join(
        f" {name}={list(ids)}"
        for name, ids in (("adding", chunk.adding_replicas), ("removing", chunk.removing_replicas))
        if ids
    )
    return (
        f"  chunk {chunk.start_offset}-{chunk.end_offset} replicas={list(chunk.replicas)}"
        f" isr={list(chunk.isr)} epoch={chunk.epoch}{moving}"
    )


class ChunkCommands:
    """The part of the script interpreter that runs commands about chunks."""

    controller: Controller

    def send(self, request: Message) -> str:
        raise NotImplementedError

    def _epoch(self, broker_id: int) -> int:
        raise NotImplementedError

    def _named(self, word: str) -> tuple[str, uuid.UUID, int, PartitionRegistration | None]:
        name, _, index = word.rpartition("-")
        topic = self.controller.image.topics.get(name)
        partition = None
        if topic is not None and int(index) < len(topic.partitions):
            partition = topic.partitions[int(index)]
        return name, MISSING if topic is None else topic.topic_id, int(index), partition

    def do_chunk(self, words: list[str], flags: set[str], options: dict[str, str]) -> str:
        name, topic_id, index, partition = self._named(words[0])
        leader, border = int(options["by"]), int(options["at"])
        epochs = (0, 0) if partition is None else (partition.leader_epoch, partition.partition_epoch)
        row = create_chunks.CreateChunksTopicPartition(
            topic_name=name,
            partition_id=index,
            broker_ids=_numbers(options["on"]),
            start_offset=border,
            start_timestamp=border * 100,
            prev_stop_offset=int(options.get("stop", border - 1)),
            topic_id=topic_id,
            leader_epoch=int(options.get("leader_epoch", epochs[0])),
            partition_epoch=int(options.get("partition_epoch", epochs[1])),
            in_sync=_numbers(options.get("sync", options["on"])),
            max_timestamp=border * 100 - 1,
            size_bytes=border * 10,
            first_offset=int(options.get("first", "0")),
            first_timestamp=7,
        )
        return self.send(
            create_chunks.CreateChunksRequest(
                topic_partitions=[row, row] if "twice" in flags else [row],
                broker_id=leader,
                broker_epoch=int(options.get("broker_epoch", self._epoch(leader))),
            )
        )

    def do_move_chunk(self, words: list[str], flags: set[str], options: dict[str, str]) -> str:
        name, _, index, _ = self._named(words[0])
        row = alter_chunk_assignments.AlterChunkAssignment(
            topic_name=name,
            partition_id=index,
            start_offset=int(options["at"]),
            chunk_epoch=int(options.get("epoch", "-1")),
            broker_ids=None if options["to"] == "cancel" else _numbers(options["to"]),
        )
        return self.send(
            alter_chunk_assignments.AlterChunkAssignmentsRequest(
                chunks=[row, row] if "twice" in flags else [row]
            )
        )

    def do_report_chunk(self, words: list[str], flags: set[str], options: dict[str, str]) -> str:
        broker_id = int(words[0])
        _, topic_id, index, _ = self._named(words[1])
        row = report_chunks.ReportedChunk(
            topic_id=topic_id,
            partition_index=index,
            start_offset=int(options["at"]),
            is_held="lost" not in flags,
            directory_id=uuid.UUID(int=int(options.get("dir", "0"))),
            chunk_epoch=int(options.get("epoch", "-1")),
        )
        return self.send(
            report_chunks.ReportChunksRequest(
                broker_id=broker_id,
                broker_epoch=int(options.get("broker_epoch", self._epoch(broker_id))),
                chunks=[row],
            )
        )

    def do_drop_chunks(self, words: list[str], _flags: set[str], options: dict[str, str]) -> str:
        _, topic_id, index, partition = self._named(words[0])
        epoch = 0 if partition is None else partition.leader_epoch
        leader = int(options["by"])
        row = drop_chunks.DropChunksPartition(
            topic_id=topic_id,
            partition_index=index,
            leader_epoch=int(options.get("leader_epoch", epoch)),
            log_start_offset=int(options["below"]),
        )
        return self.send(
            drop_chunks.DropChunksRequest(
                broker_id=leader,
                broker_epoch=int(options.get("broker_epoch", self._epoch(leader))),
                partitions=[row],
            )
        )


def _numbers(text: str) -> list[int]:
    return [int(item) for item in text.split(",") if item]
