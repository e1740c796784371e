"""The calls by which the broker that makes the cuts reaches the leaders of the saved logs."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from moldau.backup.calls import SAVE_LOGS, LogSaving, LogsToSave, SavedLog
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.network.client.rpc_client import RpcClient
from moldau.network.own_calls import BrokerChannel
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.context import BrokerContext
from moldau.server.metadata.cluster_view import ClusterView

TIMEOUT_MS: Final = 120_000
"""Time-out of a call in ms. In a large cluster the first call stores all logs of a broker, so the time-out is
long."""


def generation_of(image: MetadataImage) -> int:
    """The generation of a cluster. It is the latest generation in the log of the first diskless
    coordinator."""
    topic = image.topics.get(DISKLESS_METADATA_TOPIC)
    return 0 if topic is None else topic.partitions[0].generations.latest


class BackupPeers:
    """Calls the leaders of the saved logs over the network. Implements
    :class:`moldau.backup.cut_maker.BackupCluster`."""

    def __init__(
        self,
        view: ClusterView,
        cluster_id: str,
        listener_name: str,
        client: RpcClient,
        local: LogSaving,
        until_current: Callable[[], Awaitable[None]],
        fail: Callable[[str], None],
    ) -> None:
        self._view = view
        self._cluster_id = cluster_id
        self._listener_name = listener_name
        self._client = client
        self._local = local
        self._until_current = until_current
        self._fail = fail

    @classmethod
    def of(cls, context: BrokerContext, local: LogSaving) -> "BackupPeers":
        """Make the object with which a broker calls the leaders of the saved logs."""
        return cls(
            context.view,
            context.identity.cluster_id,
            context.config.inter_broker_listener_name,
            RpcClient(context.machine.entropy, client_id=f"backup-{context.view.local_id}"),
            local,
            context.metadata.until_current,
            context.fail,
        )

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def broker_id(self) -> int:
        return self._view.local_id

    @property
    def generation(self) -> int:
        return generation_of(self._view.image)

    @property
    def image(self) -> MetadataImage:
        return self._view.image

    def fail(self, reason: str) -> None:
        self._fail(reason)

    def is_maker(self) -> bool:
        """Whether this broker makes the cuts. The broker that leads the first diskless coordinator makes
        them."""
        return self._view.leader_of(DISKLESS_METADATA_TOPIC, 0) == self._view.local_id

    async def save_logs(self, broker_id: int, wanted: LogsToSave) -> Sequence[SavedLog]:
        if broker_id == self._view.local_id:
            return await self._local.save_logs(wanted)
        address = self._view.address(broker_id, self._listener_name)
        if address is None:
            raise KafkaError(ErrorCode.broker_not_available, f"broker {broker_id} is not known")
        return await BrokerChannel(self._client, *address, TIMEOUT_MS).call(SAVE_LOGS, wanted)

    async def until_current(self) -> None:
        await self._until_current()

    async def close(self) -> None:
        """Close the connections. Calls in progress fail."""
        await self._client.close()
