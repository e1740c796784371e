"""Checks of the chunks of a simulated cluster, in the metadata and on the disks."""

from collections.abc import Iterator

from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.partition import PartitionRegistration
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import iter_headers
from moldau.simulation.world.host import Host
from moldau.simulation.world.process import Process
from moldau.storage.folders.file_names import LOG_SUFFIX, chunk_folder, chunk_of


def chunk_problem(partition: PartitionRegistration) -> str | None:
    """Return the reason why the chunks of a partition still change. ``None`` if no move is in progress and
    every replica is complete."""
    for chunk in partition.chunks:
        if chunk.is_moving or set(chunk.isr) != set(chunk.replicas):
            return f"chunk {chunk.start_offset} is not complete: {chunk}"
    return None


def check_borders(name: TopicPartition, partition: PartitionRegistration) -> Iterator[str]:
    """Check that the chunks have no gaps between them."""
    chunks = partition.chunks
    starts = [each.start_offset for each in chunks[1:]] + [partition.start_offset]
    for chunk, following in zip(chunks, starts, strict=False):
        if chunk.end_offset + 1 != following or chunk.stop_offset != chunk.end_offset:
            yield f"{name}: chunk {chunk} does not end before {following}"


def chunk_folders(host: Host, folder: str) -> set[tuple[str, int]]:
    """The folders of chunks on a host's disk. Each entry is the name of a folder and the start offset of its
    chunk."""
    disk = host.disk.mount(Process("checks"))
    found = set()
    for name in disk.list(folder):
        named = chunk_of(name)
        if named is not None:
            found.add((name, named[1]))
    return found


def first_common_offset(
    name: TopicPartition, chunk: ChunkRegistration, hosts: dict[int, Host], folder: str
) -> int:
    """The first offset that all in-sync replicas of a chunk have. It may be after the start of the chunk,
    because a replica of a tiered partition may have removed its first segments before the chunk ended."""
    path = f"{folder}/{chunk_folder(name, chunk.start_offset)}"
    first = chunk.start_offset
    for broker_id in chunk.isr:
        disk = hosts[broker_id].disk.mount(Process("checks"))
        names = disk.list(path) if disk.is_dir(path) else []
        bases = [int(each.removesuffix(LOG_SUFFIX)) for each in names if each.endswith(LOG_SUFFIX)]
        first = max(first, min(bases, default=first))
    return first


def check_contents(
    name: TopicPartition, chunk: ChunkRegistration, hosts: dict[int, Host], folder: str, first_offset: int
) -> Iterator[str]:
    """Check that the replicas of a chunk are complete, and that their records at or after ``first_offset``
    are equal byte for byte. Each replica may have deleted the records before ``first_offset``."""
    contents: dict[int, bytes] = {}
    path = f"{folder}/{chunk_folder(name, chunk.start_offset)}"
    for broker_id in chunk.isr:
        disk = hosts[broker_id].disk.mount(Process("checks"))
        if not disk.is_dir(path):
            yield f"{name}: broker {broker_id} has no chunk {chunk.start_offset}"
            continue
        parts: list[bytes] = []
        next_offset = -1
        for file in sorted(each for each in disk.list(path) if each.endswith(LOG_SUFFIX)):
            log = disk.open(f"{path}/{file}", read_only=True)
            view = memoryview(log.read_at(0, log.size()))
            log.close()
            for position, header in iter_headers(view):
                if header.last_offset < max(first_offset, chunk.start_offset):
                    continue
                if next_offset not in (-1, header.base_offset):
                    yield f"{name}: broker {broker_id} lacks {next_offset} in chunk {chunk.start_offset}"
                next_offset = header.last_offset + 1
                parts.append(bytes(view[position : position + header.size_bytes]))
        if next_offset != chunk.end_offset + 1:
            yield f"{name}: chunk {chunk} ends at {next_offset} on broker {broker_id}"
        contents[broker_id] = b"".join(parts)
    if len(set(contents.values())) > 1:
        yield f"{name}: the replicas {sorted(contents)} of chunk {chunk.start_offset} are not equal"
