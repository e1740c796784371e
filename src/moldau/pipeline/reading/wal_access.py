"""Where a diskless topic's batches can be found without the brokers' help: who knows, and what holds them.

The coordinators know (CLUSTER_ACTION), the object store holds. A topic for which either cannot be had is
read through the brokers, which is right and slower.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import UUID

from moldau.client.cluster import RETRIABLE, Client, Endpoint, Topic
from moldau.client.errors import ToolError
from moldau.objects.factory import StorageSettings
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.protocol.own import DISKLESS_COORDINATOR_KEY_TYPE
from moldau.protocol.own.diskless_find_batches import (
    DisklessFindBatchesPartition,
    DisklessFindBatchesPartitionResult,
    DisklessFindBatchesRequest,
    DisklessFindBatchesResponse,
    DisklessFindBatchesTopic,
)
from moldau.runtime.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

T = TypeVar("T")

METADATA_TOPIC: Final = "__diskless_metadata"
OPTION_PREFIX: Final = "diskless.storage."
URL: Final = "diskless.storage.url"
CLASS_NAME: Final = "diskless.storage.class.name"
BYTES_MAX: Final = 2**31 - 1

TOPIC_CONFIG: Final = 2
_BROKER_CONFIG: Final = 4


@dataclass(frozen=True, slots=True)
class WalAccess:
    """How tasks find and read a topic's objects; it travels to the workers."""

    coordinators: Mapping[int, int]
    """By partition, the diskless coordinator that owns it; that never changes."""
    storage: StorageSettings


class Coordinators:
    """Asks the diskless coordinators where batches lie."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._endpoints: dict[int, Endpoint] = {}

    async def find(
        self, coordinator_id: int, topic_id: UUID, offsets: Mapping[int, int], batches_max: int
    ) -> Sequence[DisklessFindBatchesPartitionResult]:
        """For each partition up to ``batches_max`` batches from its offset on, and its own error."""
        rows = [
            DisklessFindBatchesPartition(
                partition_index=partition, offset=offset, max_partition_fetch_bytes=BYTES_MAX
            )
            for partition, offset in offsets.items()
        ]
        request = DisklessFindBatchesRequest(
            coordinator_id=coordinator_id,
            fetch_max_bytes=BYTES_MAX,
            max_batches_per_partition=batches_max,
            topics=[DisklessFindBatchesTopic(topic_id=topic_id, partitions=rows)],
            timeout_ms=self._client.timeout_ms,
        )
        response = await self.asked(coordinator_id, lambda endpoint: self._find(endpoint, request))
        return [row for topic in response.topics for row in topic.partitions]

    async def _find(
        self, endpoint: Endpoint, request: DisklessFindBatchesRequest
    ) -> DisklessFindBatchesResponse:
        response: DisklessFindBatchesResponse = await self._client.ask(request, broker=endpoint, version=0)
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, response.error_message or response.error_code.name)
        return response

    async def asked(self, coordinator_id: int, call: Callable[[Endpoint], Awaitable[T]]) -> T:
        """Call with the coordinator's broker, again where it has moved or does not answer."""

        async def ask() -> T:
            endpoint = self._endpoints.get(coordinator_id)
            if endpoint is None:
                about = f"diskless coordinator {coordinator_id}"
                found = await self._client.find_coordinator(
                    DISKLESS_COORDINATOR_KEY_TYPE, str(coordinator_id), about
                )
                endpoint = self._endpoints[coordinator_id] = found.endpoint
            try:
                return await call(endpoint)
            except KafkaError as error:
                if error.code in RETRIABLE:  # it may be led by another broker now
                    self._endpoints.pop(coordinator_id, None)
                raise

        return await self._client.retrying(ask)


async def find_wal_access(client: Client, topic: Topic, given: Mapping[str, str]) -> WalAccess | None:
    """How to read a topic from its objects; ``None``, with a log line, where only brokers can be asked.

    ``given`` are options of the job that begin with ``diskless.storage.``; what they leave out is asked of
    a broker, but for credentials, which the environment of the tasks has.
    """
    try:
        if await find_config(client, TOPIC_CONFIG, topic.name, "diskless.enable") != "true":
            return None
        coordinators, storage = await asyncio.gather(_find_owners(client, topic), find_storage(client, given))
    except (KafkaError, ToolError) as error:
        logger.warning("topic %s is read through the brokers: %s", topic.name, error)
        return None
    return WalAccess(coordinators, storage)


async def high_watermarks(client: Client, topic: Topic, access: WalAccess) -> dict[int, int]:
    """Where partitions end, told by who decides it: a leader may hear of a commit a moment later."""
    asking, ends = Coordinators(client), dict[int, int]()
    by_owner: dict[int, dict[int, int]] = {}
    for partition, coordinator_id in access.coordinators.items():
        by_owner.setdefault(coordinator_id, {})[partition] = 0
    for coordinator_id, offsets in by_owner.items():
        for row in await asking.find(coordinator_id, topic.topic_id, offsets, 1):
            ends[row.partition_index] = row.high_watermark
    return ends


async def _find_owners(client: Client, topic: Topic) -> dict[int, int]:
    """Partitions by coordinator: each is asked which it has."""
    (row,) = (await client.metadata([METADATA_TOPIC])).topics
    if row.error_code is not ErrorCode.none:
        raise KafkaError(row.error_code, f"{METADATA_TOPIC}: {row.error_code.name}")
    asking = Coordinators(client)
    ids = [partition.partition_index for partition in row.partitions]
    starts = dict.fromkeys(topic.leaders, 0)
    answers = await asyncio.gather(*(asking.find(one, topic.topic_id, starts, 1) for one in ids))
    return {
        found.partition_index: coordinator_id
        for coordinator_id, answer in zip(ids, answers, strict=True)
        for found in answer
        if found.error_code is not ErrorCode.unknown_topic_or_partition
    }


async def find_storage(client: Client, given: Mapping[str, str]) -> StorageSettings:
    """The object store, as options say and else as a broker says. Raises :class:`ToolError`."""
    url, class_name = given.get(URL), given.get(CLASS_NAME)
    if url is None:
        known = await broker_configs(client, URL, CLASS_NAME)
        url = known[URL]
        class_name = class_name or known[CLASS_NAME]
    if not url:
        raise ToolError(f"no {URL} is known: give it as an option")
    if url.startswith("memory:"):
        raise ToolError(f"{url} is the brokers' own memory")
    options = {
        name.removeprefix(OPTION_PREFIX): value
        for name, value in given.items()
        if name.startswith(OPTION_PREFIX) and name not in (URL, CLASS_NAME)
    }
    return StorageSettings(url, class_name or None, options)


async def broker_config(client: Client, key: str) -> str | None:
    """A config of some broker; ``None`` where it has no value or is kept secret."""
    return (await broker_configs(client, key))[key]


async def broker_configs(client: Client, *keys: str) -> dict[str, str | None]:
    """Configs of some broker; ``None`` for those that have no value or are kept secret."""
    return await _find_configs(client, _BROKER_CONFIG, str(await client.some_broker()), keys)


async def find_config(client: Client, kind: int, name: str, key: str) -> str | None:
    """One config's value; ``None`` where it has none or it is kept secret."""
    return (await _find_configs(client, kind, name, [key]))[key]


async def _find_configs(client: Client, kind: int, name: str, keys: Sequence[str]) -> dict[str, str | None]:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=list(keys))
    response = await client.ask(
        DescribeConfigsRequest(resources=[resource], include_synonyms=False, include_documentation=False),
        broker=int(name) if kind == _BROKER_CONFIG else None,
    )
    found: dict[str, str | None] = dict.fromkeys(keys)
    for result in response.results:
        if result.error_code is not ErrorCode.none:
            raise KafkaError(result.error_code, result.error_message or result.error_code.name)
        found.update((row.name, row.value) for row in result.configs if row.name in found)
    return found
