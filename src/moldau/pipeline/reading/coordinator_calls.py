"""Asking diskless coordinators what jobs need to know: topics, files, and closing files."""

from collections.abc import Sequence
from typing import Any

from moldau.client.cluster import Endpoint
from moldau.client.errors import ToolError
from moldau.coordinators.diskless.calls import ClosedFile, DescribedFile
from moldau.pipeline.reading.wal_access import METADATA_TOPIC, Coordinators
from moldau.protocol.own.diskless_close_files import DisklessCloseFilesRequest
from moldau.protocol.own.diskless_describe_files import (
    DisklessDescribeFileEntry,
    DisklessDescribeFilesRequest,
)
from moldau.protocol.own.diskless_describe_topics import DisklessDescribedTopic, DisklessDescribeTopicsRequest
from moldau.runtime.errors import ErrorCode, KafkaError


class CoordinatorCalls(Coordinators):
    """All coordinators of a cluster; failures are ``KafkaError``. A witness for the orphan scan."""

    async def ids(self) -> Sequence[int]:
        """Raises :class:`ToolError` where there are no diskless topics."""
        (row,) = (await self._client.metadata([METADATA_TOPIC])).topics
        if row.error_code is ErrorCode.unknown_topic_or_partition:
            raise ToolError("this cluster has no diskless topics (diskless.system.enable)")
        if row.error_code is not ErrorCode.none:
            raise KafkaError(row.error_code, f"{METADATA_TOPIC}: {row.error_code.name}")
        return range(len(row.partitions))

    async def describe_topics(self, coordinator_id: int) -> Sequence[DisklessDescribedTopic]:
        """With the partitions that this coordinator has."""
        request = DisklessDescribeTopicsRequest(coordinator_id=coordinator_id, topic_ids=None)
        found: Sequence[DisklessDescribedTopic] = (await self._ask(coordinator_id, request)).topics
        return found

    async def describe_files(
        self, coordinator_id: int, object_keys: Sequence[str]
    ) -> Sequence[DescribedFile]:
        request = DisklessDescribeFilesRequest(
            coordinator_id=coordinator_id,
            files=[DisklessDescribeFileEntry(object_key=key) for key in object_keys],
        )
        return [
            DescribedFile(row.object_key, is_known=row.is_known, has_live_batches=row.has_live_batches)
            for row in (await self._ask(coordinator_id, request)).files
            if row.error_code is ErrorCode.none
        ]

    async def close_files(self, coordinator_id: int, object_keys: Sequence[str]) -> Sequence[ClosedFile]:
        request = DisklessCloseFilesRequest(coordinator_id=coordinator_id, object_keys=list(object_keys))
        return [
            ClosedFile(row.object_key, row.error_code, row.error_message)
            for row in (await self._ask(coordinator_id, request)).files
        ]

    async def _ask(self, coordinator_id: int, request: Any) -> Any:
        async def ask(endpoint: Endpoint) -> Any:
            response = await self._client.ask(request, broker=endpoint, version=0)
            if response.error_code is not ErrorCode.none:
                raise KafkaError(response.error_code, response.error_message or response.error_code.name)
            return response

        return await self.asked(coordinator_id, ask)
