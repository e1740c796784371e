"""Asking the diskless coordinators of a cluster, which speak APIs that brokers do not advertise."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from moldau.cli.errors import CommandError
from moldau.client.cluster import RETRIABLE, Client, FoundCoordinator
from moldau.protocol.own import DISKLESS_COORDINATOR_KEY_TYPE
from moldau.protocol.own.diskless_describe_coordinator import (
    DisklessDescribeCoordinatorRequest,
    DisklessDescribeCoordinatorResponse,
)
from moldau.protocol.own.diskless_describe_files import (
    DisklessDescribeFileResult,
    DisklessDescribeFilesRequest,
)
from moldau.protocol.own.diskless_describe_topics import (
    DisklessDescribedPartition,
    DisklessDescribeTopicsRequest,
)
from moldau.runtime.errors import ErrorCode, KafkaError

METADATA_TOPIC: Final = "__diskless_metadata"
FILES_A_PAGE: Final = 1000


@dataclass(slots=True)
class DisklessTopic:
    """A topic as its coordinators see it; an object that several of them share counts once."""

    name: str
    topic_id: UUID
    objects: int = 0
    objects_bytes: int = 0
    deleted_bytes: int = 0
    partitions: dict[int, tuple[int, DisklessDescribedPartition]] = field(default_factory=dict)
    """By index: coordinator and description."""


@dataclass(slots=True)
class DisklessFile:
    """An object as its coordinators see it; sums over them."""

    object_key: str
    size_bytes: int
    created_ms: int
    used_bytes: int = 0
    live_batches: int = 0
    coordinator_ids: list[int] = field(default_factory=list)
    owner_id: int | None = None
    has_next_owners: bool = False

    @property
    def state(self) -> str:
        """``live``; without live batches ``handing-over`` or, when nobody is left to be asked, ``free``."""
        if self.live_batches:
            return "live"
        return "handing-over" if self.owner_id is None or self.has_next_owners else "free"


async def coordinator_ids(client: Client) -> range:
    """All coordinators of the cluster. Raises :class:`CommandError` where there are none."""
    (row,) = (await client.metadata([METADATA_TOPIC])).topics
    if row.error_code is ErrorCode.unknown_topic_or_partition:
        raise CommandError("this cluster has no diskless topics (diskless.system.enable)")
    if row.error_code is not ErrorCode.none:
        raise KafkaError(row.error_code, f"{METADATA_TOPIC}: {row.error_code.name}")
    return range(len(row.partitions))


async def find(client: Client, coordinator_id: int) -> FoundCoordinator:
    """The broker that leads a coordinator."""
    about = f"diskless coordinator {coordinator_id}"
    return await client.find_coordinator(DISKLESS_COORDINATOR_KEY_TYPE, str(coordinator_id), about)


async def _ask(client: Client, coordinator_id: int, request: Any) -> Any:
    async def ask() -> Any:
        found = await find(client, coordinator_id)
        response = await client.ask(request, broker=found.endpoint, version=0)
        code: ErrorCode = response.error_code
        if code is not ErrorCode.none:
            reason = response.error_message or code.name
            raise KafkaError(code, f"diskless coordinator {coordinator_id}: {reason}")
        return response

    return await client.retrying(ask)


async def describe_topics(client: Client, names: list[str]) -> list[DisklessTopic]:
    """The named topics or, without names, all; a name that is no diskless topic is an error."""
    topics: dict[UUID, DisklessTopic] = {}
    object_keys: dict[UUID, set[str]] = {}
    coordinators = await coordinator_ids(client)
    for coordinator_id in coordinators:
        request = DisklessDescribeTopicsRequest(
            coordinator_id=coordinator_id, topic_ids=None, with_object_keys=len(coordinators) > 1
        )
        for found in (await _ask(client, coordinator_id, request)).topics:
            if names and found.name not in names:
                continue
            topic = topics.setdefault(found.topic_id, DisklessTopic(found.name, found.topic_id))
            object_keys.setdefault(found.topic_id, set()).update(found.object_keys)
            topic.objects += found.objects
            topic.objects_bytes += found.objects_bytes
            topic.deleted_bytes += found.deleted_bytes
            for partition in found.partitions:
                topic.partitions[partition.partition_index] = (coordinator_id, partition)
    if len(coordinators) > 1:
        # What one of them calls unused may be another's.
        files = {file.object_key: file for file in await describe_files(client)}
        for topic_id, topic in topics.items():
            shared = [files[key] for key in object_keys[topic_id] if key in files]
            topic.objects = len(shared)
            topic.objects_bytes = sum(file.size_bytes for file in shared)
            topic.deleted_bytes = sum(file.size_bytes - file.used_bytes for file in shared)
    missing = set(names) - {topic.name for topic in topics.values()}
    if missing:
        raise CommandError(f"no diskless topic is called {', '.join(sorted(missing))}")
    return sorted(topics.values(), key=lambda topic: topic.name)


async def describe_files(client: Client) -> list[DisklessFile]:
    """All objects that some coordinator knows, in the order of their keys."""
    files: dict[str, DisklessFile] = {}
    for coordinator_id in await coordinator_ids(client):
        async for found in _files_of(client, coordinator_id):
            fresh = DisklessFile(found.object_key, found.file_size, found.created_ms)
            file = files.setdefault(found.object_key, fresh)
            file.coordinator_ids.append(coordinator_id)
            file.used_bytes += found.used_bytes
            file.live_batches += found.live_batches
            if found.is_owned:
                file.owner_id = coordinator_id
                file.has_next_owners = bool(found.next_owner_ids)
    return [files[key] for key in sorted(files)]


async def _files_of(client: Client, coordinator_id: int) -> AsyncIterator[DisklessDescribeFileResult]:
    after_key = ""
    while True:
        request = DisklessDescribeFilesRequest(
            coordinator_id=coordinator_id, files=None, after_key=after_key, limit=FILES_A_PAGE
        )
        page = (await _ask(client, coordinator_id, request)).files
        for file in page:
            yield file
        if len(page) < FILES_A_PAGE:
            return
        after_key = page[-1].object_key


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """A coordinator, who leads it, and what it says of itself; ``None`` with the reason when it does not."""

    coordinator_id: int
    leader_id: int
    state: DisklessDescribeCoordinatorResponse | None
    problem: str | None = None


async def describe_coordinators(client: Client) -> list[CoordinatorState]:
    """All coordinators; one that is away or being loaded does not hide the others."""
    found = []
    for coordinator_id in await coordinator_ids(client):
        leader_id = -1
        request = DisklessDescribeCoordinatorRequest(coordinator_id=coordinator_id)
        try:
            leader_id = (await find(client, coordinator_id)).node_id
            state = await _ask(client, coordinator_id, request)
        except KafkaError as error:
            if error.code not in RETRIABLE:
                raise
            found.append(CoordinatorState(coordinator_id, leader_id, None, error.message or error.code.name))
            continue
        found.append(CoordinatorState(coordinator_id, leader_id, state))
    return found
