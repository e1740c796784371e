"""The diskless topics, objects and coordinators of a cluster, for the commands that show them."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from moldau.cli.errors import CommandError
from moldau.client.cluster import RETRIABLE, Client
from moldau.client.diskless import DisklessCoordinators
from moldau.client.quorum import ENDPOINT_BROKERS, describe_cluster
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.cluster.racks.gateways import Gateways, RackBroker, produce_gateways
from moldau.coordinators.diskless.calls import DescribedCoordinator, DescribedFile, DescribedPartition
from moldau.coordinators.diskless.calls.grouping import by_topic
from moldau.runtime.errors import KafkaError

FILES_A_PAGE: Final = 1000


@dataclass(slots=True)
class DisklessTopic:
    """A topic as its coordinators describe it. An object that several coordinators share is counted once."""

    name: str
    topic_id: UUID
    objects: int = 0
    objects_bytes: int = 0
    deleted_bytes: int = 0
    partitions: dict[int, tuple[int, DescribedPartition]] = field(default_factory=dict)
    """Coordinator and description of each partition, by index."""


@dataclass(slots=True)
class DisklessFile:
    """An object as its coordinators describe it. Numbers are sums over all coordinators."""

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
        """The state of the object. It is ``live`` while the object has live batches. Then it is ``free`` if
        the object has an owner and no next owners; otherwise it is ``handing-over``."""
        if self.live_batches:
            return "live"
        return "handing-over" if self.owner_id is None or self.has_next_owners else "free"


async def describe_topics(client: Client, names: list[str]) -> list[DisklessTopic]:
    """The named topics, or all topics if no name is given. A name that does not belong to a diskless topic is
    an error."""
    topics: dict[UUID, DisklessTopic] = {}
    object_keys: dict[UUID, set[str]] = {}
    asking = DisklessCoordinators(client)
    coordinators = await asking.ids()
    for coordinator_id in coordinators:
        described = await asking.describe_topics(coordinator_id, with_object_keys=len(coordinators) > 1)
        for topic_id, rows in by_topic(described.partitions):
            name, held = rows[0].topic_name, described.objects[topic_id]
            if names and name not in names:
                continue
            topic = topics.setdefault(topic_id, DisklessTopic(name, topic_id))
            object_keys.setdefault(topic_id, set()).update(held.object_keys)
            topic.objects += held.objects
            topic.objects_bytes += held.size_bytes
            topic.deleted_bytes += held.deleted_bytes
            for partition in rows:
                topic.partitions[partition.partition_index] = (coordinator_id, partition)
    if len(coordinators) > 1:
        # Bytes that one coordinator reports as unused may be in use at another coordinator.
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
    """All objects in the coordinators' state, in the order of their keys."""
    files: dict[str, DisklessFile] = {}
    asking = DisklessCoordinators(client)
    for coordinator_id in await asking.ids():
        async for found in _files_of(asking, coordinator_id):
            fresh = DisklessFile(found.object_key, found.size_bytes, found.created_ms)
            file = files.setdefault(found.object_key, fresh)
            file.coordinator_ids.append(coordinator_id)
            file.used_bytes += found.used_bytes
            file.live_batches += found.live_batches
            if found.is_owned:
                file.owner_id = coordinator_id
                file.has_next_owners = bool(found.next_owner_ids)
    return [files[key] for key in sorted(files)]


async def _files_of(asking: DisklessCoordinators, coordinator_id: int) -> AsyncIterator[DescribedFile]:
    after_key = ""
    while True:
        page = await _page(asking, coordinator_id, after_key)
        for file in page:
            yield file
        if len(page) < FILES_A_PAGE:
            return
        after_key = page[-1].object_key


async def _page(asking: DisklessCoordinators, coordinator_id: int, after_key: str) -> Sequence[DescribedFile]:
    return await asking.asked(
        coordinator_id, lambda calls: calls.list_files(coordinator_id, after_key, FILES_A_PAGE)
    )


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """A coordinator with its leader and its own report. If the coordinator does not answer, the report is
    ``None`` and the reason is given."""

    coordinator_id: int
    leader_id: int
    state: DescribedCoordinator | None
    problem: str | None = None


async def describe_coordinators(client: Client) -> list[CoordinatorState]:
    """All coordinators. If one coordinator does not answer or is loading, the other coordinators are still
    shown."""
    found = []
    asking = DisklessCoordinators(client)
    for coordinator_id in await asking.ids():
        leader_id = -1
        try:
            leader_id = await asking.leader_of(coordinator_id)
            state = await _state_of(asking, coordinator_id)
        except KafkaError as error:
            if error.code not in RETRIABLE:
                raise
            found.append(CoordinatorState(coordinator_id, leader_id, None, error.message or error.code.name))
            continue
        found.append(CoordinatorState(coordinator_id, leader_id, state))
    return found


@dataclass(frozen=True, slots=True)
class GatewayBroker:
    """A broker as a produce gateway (KIP-1164)."""

    broker_id: int
    rack: str | None
    is_live: bool
    coordinator_ids: Sequence[int]
    """The coordinators for which the broker is the gateway."""
    commit_calls: int
    """Maximum number of commit calls over the network that a WAL object of this broker needs, if the
    preferred replicas of ``__diskless_metadata`` are leaders.
    """


async def describe_gateways(client: Client) -> tuple[Gateways, list[GatewayBroker]]:
    """Return the produce gateways of the cluster, and the brokers in the order of their ids. The gateways are
    computed by the rule that every broker uses."""
    cluster = await describe_cluster(client, ENDPOINT_BROKERS)
    brokers = [RackBroker(each.broker_id, each.rack, not each.is_fenced) for each in cluster.brokers]
    found = await client.metadata([DISKLESS_METADATA_TOPIC])
    rows = sorted(found.topics[0].partitions, key=lambda row: row.partition_index)
    gateways = produce_gateways(brokers, [row.replica_nodes[0] for row in rows])
    return gateways, [
        GatewayBroker(
            each.broker_id,
            each.rack,
            each.is_live,
            gateways.coordinators_of(each.broker_id),
            gateways.commit_calls(each.broker_id),
        )
        for each in sorted(brokers)
    ]


async def _state_of(asking: DisklessCoordinators, coordinator_id: int) -> DescribedCoordinator:
    return await asking.asked(coordinator_id, lambda calls: calls.describe_coordinator(coordinator_id))
