"""Access to a diskless topic's batches through its coordinators and its object store, without fetches from
brokers.

The coordinators provide the positions of the batches (this requires READ on the topic). The object store has
the data. If the coordinators or the store are not accessible, the topic is read through the brokers, which is
slower.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from moldau.client.cluster import Client, ClusterTopic
from moldau.client.diskless import DisklessCoordinators
from moldau.client.errors import ToolError
from moldau.objects.factory import StorageSettings
from moldau.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from moldau.runtime.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

OPTION_PREFIX: Final = "diskless.storage."
URL: Final = "diskless.storage.url"
CLASS_NAME: Final = "diskless.storage.class.name"

TOPIC_CONFIG: Final = 2
_BROKER_CONFIG: Final = 4


@dataclass(frozen=True, slots=True)
class WalAccess:
    """The information with which tasks find and read a topic's objects. It is sent to the workers."""

    coordinators: Mapping[int, int]
    """For each partition, its diskless coordinator. This assignment never changes."""
    storage: StorageSettings


async def find_wal_access(client: Client, topic: ClusterTopic, given: Mapping[str, str]) -> WalAccess | None:
    """Access to a topic's objects. Returns ``None`` if the topic can be read only through brokers. If the
    topic is diskless, the reason is logged."""
    try:
        return await look_up_wal_access(client, topic, given)
    except (KafkaError, ToolError) as error:
        logger.warning("topic %s is read through the brokers: %s", topic.name, error)
        return None


async def look_up_wal_access(
    client: Client, topic: ClusterTopic, given: Mapping[str, str]
) -> WalAccess | None:
    """The place of a topic's objects, and the coordinators of the topic. ``None`` for a topic that is not
    diskless.

    ``given`` has the job's options that begin with ``diskless.storage.``. Missing options are requested from
    a broker. Credentials are not requested, because tasks have them in their environment. Raises
    :class:`ToolError` if no store is known, and ``KafkaError`` for errors of brokers.
    """
    if await find_config(client, TOPIC_CONFIG, topic.name, "diskless.enable") != "true":
        return None
    coordinators, storage = await asyncio.gather(_find_owners(client, topic), find_storage(client, given))
    return WalAccess(coordinators, storage)


async def high_watermarks(client: Client, topic: ClusterTopic, access: WalAccess) -> dict[int, int]:
    """End offsets of partitions, from their coordinators. A partition's leader is not asked, because it knows
    a commit slightly later than the coordinator."""
    asking, ends = DisklessCoordinators(client), dict[int, int]()
    by_owner: dict[int, dict[int, int]] = {}
    for partition, coordinator_id in access.coordinators.items():
        by_owner.setdefault(coordinator_id, {})[partition] = 0
    for coordinator_id, offsets in by_owner.items():
        for row in await asking.find(coordinator_id, topic.topic_id, offsets, 1):
            ends[row.partition_index] = row.high_watermark
    return ends


async def _find_owners(client: Client, topic: ClusterTopic) -> dict[int, int]:
    """The coordinator of each partition. Each coordinator lists its own partitions."""
    asking = DisklessCoordinators(client)
    ids = await asking.ids()
    starts = dict.fromkeys(topic.leaders, 0)
    answers = await asyncio.gather(*(asking.find(one, topic.topic_id, starts, 1) for one in ids))
    return {
        found.partition_index: coordinator_id
        for coordinator_id, answer in zip(ids, answers, strict=True)
        for found in answer
        if found.error is not ErrorCode.unknown_topic_or_partition
    }


async def find_storage(client: Client, given: Mapping[str, str]) -> StorageSettings:
    """The object store that the options name, or else the object store of a broker. Raises
    :class:`ToolError`."""
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
    """A config of any broker; ``None`` if the config has no value or is sensitive."""
    return (await broker_configs(client, key))[key]


async def broker_configs(client: Client, *keys: str) -> dict[str, str | None]:
    """Configs of any broker; ``None`` for configs that have no value or are sensitive."""
    return _configs_in(
        await client.ask_each(lambda broker: _question(_BROKER_CONFIG, str(broker), keys)), keys
    )


async def find_config(client: Client, kind: int, name: str, key: str) -> str | None:
    """A config that has the same value on every broker; ``None`` if the config has no value or is
    sensitive."""
    return _configs_in(await client.ask(_question(kind, name, [key])), [key])[key]


def _question(kind: int, name: str, keys: Sequence[str]) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=list(keys))
    return DescribeConfigsRequest(resources=[resource], include_synonyms=False, include_documentation=False)


def _configs_in(response: DescribeConfigsResponse, keys: Sequence[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = dict.fromkeys(keys)
    for result in response.results:
        if result.error_code is not ErrorCode.none:
            raise KafkaError(result.error_code, result.error_message or result.error_code.name)
        found.update((row.name, row.value) for row in result.configs if row.name in found)
    return found
