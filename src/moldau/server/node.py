"""A node. It consists of its folders, its metadata, a controller and a broker. ``process.roles`` determines
whether it has a controller, a broker or both.

The order of the start is: identity → logs → metadata (quorum) → controller → broker. The stop has the reverse
order, and writes the clean-shutdown marks. The controller and the broker each consist of a list of subsystems
(:mod:`moldau.server.composition`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Final, TypeVar

from moldau.cluster.controller.channel import ControllerChannel
from moldau.cluster.controller.network_channel import NetworkControllerChannel
from moldau.cluster.folders.meta_properties import FormatError
from moldau.cluster.image.registrations import FeatureRanges
from moldau.config.broker import BrokerConfig
from moldau.config.topic_config import TopicConfig
from moldau.network.authorization import AllowEveryone
from moldau.network.client.rpc_client import RpcClient
from moldau.quorum.state_store import QuorumStateError
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.server import settings
from moldau.server.bound_listeners import PAGES, BoundListeners
from moldau.server.broker import Broker
from moldau.server.composition import compose_controller
from moldau.server.context import NodeContext
from moldau.server.extensions import Extensions
from moldau.server.identity import Address, identify
from moldau.server.metadata.metadata_node import MetadataNode
from moldau.server.metadata.quorum_peers import RECONNECT_LIMITS
from moldau.server.observing.meters import NodeMeters
from moldau.server.subsystem import Subsystem, SubsystemList
from moldau.storage.folders.log_directory import LogDirectoryError
from moldau.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Subsystem)

UNUSABLE_FOLDER: Final = (FormatError, LogDirectoryError, QuorumStateError)
"""Errors of a start which mean that a folder's content is damaged, or that a folder belongs to another node
or cluster.
"""


class ServerNode:
    """A node on one machine: a broker, a controller, or both (``process.roles``).

    ``await start()`` returns when clients are served. ``await stop()`` stops the node cleanly, and may be
    called in any state of the node. ``await failed()`` returns the reason when the node cannot continue.
    """

    def __init__(
        self,
        config: BrokerConfig,
        machine: Machine,
        *,
        format_new: bool = False,
        features: FeatureRanges = settings.SUPPORTED_FEATURES,
    ) -> None:
        """With ``format_new``, unformatted folders are formatted. Otherwise they are refused.

        ``features`` are the supported feature levels. With the levels of another version, the node behaves
        like a node of that version.
        """
        self._features = features
        self._config = config
        self._machine = machine
        self._format_new = format_new
        self._failure: asyncio.Future[str] | None = None
        self._closing = contextlib.AsyncExitStack()
        self._listeners = BoundListeners()
        self._extensions = Extensions()
        self._neighbours: SubsystemList | None = None
        """The subsystems of the controller, if the node is a controller."""
        self._broker: Broker | None = None
        self._logs: LogManager | None = None
        self.metadata: MetadataNode | None = None
        """The metadata replica of a running node, for tools and checks in the node's process."""

    @property
    def monitoring_port(self) -> int | None:
        """Port of /metrics and /health; None when ``metrics.listener`` is not set."""
        pages = self._listeners.find(PAGES)
        return None if pages is None else pages.port

    @property
    def extensions(self) -> Extensions:
        """The contributions of the node's subsystems, for tools and checks in the node's process."""
        return self._extensions

    def find(self, kind: type[S]) -> S | None:
        """Find a subsystem of a running node by its class. This method is for tools and checks in the node's
        process."""
        for part in (self._broker, self._neighbours):
            found = None if part is None else part.find(kind)
            if found is not None:
                return found
        return None

    def get(self, kind: type[S]) -> S:
        """Return the subsystem of class ``kind``. The node must have this subsystem."""
        found = self.find(kind)
        assert found is not None, f"the node has no {kind.__name__}"
        return found

    def in_hand(self) -> Mapping[str, int]:
        """Return numbers that show the work in progress and the memory in use, by name. All of them are zero
        on an idle node."""
        return self._extensions.in_hand()

    async def start(self) -> Address:
        """Start everything and return the address for clients. A node that is only a controller returns its
        own listener's address.

        When a part fails, the parts that were started are stopped, and then the failure is raised.

        Raises ``KafkaError(kafka_storage_error)`` if a folder has unusable files. The message is a sentence
        for the operator.
        """
        loop = asyncio.get_running_loop()
        failure = self._failure = loop.create_future()
        starting = loop.create_task(self._start())
        try:
            await asyncio.wait((starting, failure), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                raise KafkaError(ErrorCode.kafka_storage_error, failure.result())
            return starting.result()
        except BaseException as error:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await self.stop()
            if isinstance(error, UNUSABLE_FOLDER):
                raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
            raise

    async def _start(self) -> Address:
        machine, config = self._machine, self._config
        # The deletion clock is protected against jumps of the machine's clock only after its first reading.
        # Therefore it is read here. Without this line, its first reading would be much later, in retention.
        machine.deletion_clock.now_ms()
        settings.check_supported(config)
        for key, reason in settings.without_effect(config).items():
            logger.warning("%s %s", key, reason)
        identity = identify(machine, config, format_new=self._format_new)
        logs = self._logs = LogManager(
            machine,
            list(config.log_dirs),
            settings.log_manager_settings(config),
            on_offline=self._log_dir_offline,
            critical=settings.CRITICAL_TOPICS,
        )
        logs.identify(
            {path.rstrip("/"): each for path, each in identity.directories.items()},
            {path.rstrip("/"): reason for path, reason in identity.unreadable.items()},
        )
        # The logs are started before the metadata log is used. At their start they acquire the lock that
        # prevents a second process from using the folders. Topics get their own configs when the image opens
        # their partitions. This happens long before retention runs for the first time.
        defaults = settings.log_config(TopicConfig.effective(config, {}))
        await logs.start(lambda topic: defaults)
        self._closing.push_async_callback(logs.stop)
        metadata = self.metadata = MetadataNode(
            machine, config, identity, self._fail, logs, self._listeners, self._features
        )
        await logs.note_boot()
        self._closing.push_async_callback(metadata.stop)
        context = NodeContext(
            machine=machine,
            config=config,
            identity=identity,
            metadata=metadata,
            logs=logs,
            meters=NodeMeters(),
            listeners=self._listeners,
            features=self._features,
            fail=self._fail,
            authorizer=AllowEveryone(),
        )
        extensions = self._extensions = Extensions()
        neighbours = self._neighbours = SubsystemList(compose_controller(context, metadata, extensions))
        self._closing.push_async_callback(neighbours.stop)
        self._closing.push_async_callback(neighbours.drain)
        await metadata.start()
        await neighbours.start()
        if config.is_broker:
            broker = self._broker = Broker(context, self._channel(metadata, extensions.channel), extensions)
            self._closing.push_async_callback(broker.stop)
            return await broker.start()
        neighbours.follow(metadata.publisher)
        await neighbours.listening([])
        await neighbours.serve()
        return self._listeners[config.controller_listeners[0].name]

    def _channel(self, metadata: MetadataNode, local: ControllerChannel | None) -> ControllerChannel:
        """The broker's channel to the active controller. The active controller is in this process or in
        another process, and may move to another node."""
        if local is not None and settings.is_whole_cluster(self._config):
            return local
        # The quorum has its own client, because a fetch that waits at the leader would delay heartbeats on
        # the same connection.
        client = RpcClient(
            self._machine.entropy, client_id=f"broker-{self._config.node_id}", limits=RECONNECT_LIMITS
        )
        self._closing.push_async_callback(client.close)
        return NetworkControllerChannel(
            client, metadata.driver.addresses.find, lambda: metadata.driver.leader_id
        )

    async def stop(self) -> None:
        """Stop everything in reverse order. A second call does nothing."""
        await self._closing.aclose()

    @property
    def open_log_count(self) -> int:
        """Number of open logs. It is 0 after a stop."""
        return sum(1 for log in self._logs or () if not log.is_closed)

    async def failed(self) -> str:
        """Wait for a failure after which the node cannot continue. Returns the reason."""
        assert self._failure is not None, "the node was not started"
        return await asyncio.shield(self._failure)

    def _fail(self, reason: str) -> None:
        logger.error("the node cannot continue: %s", reason)
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(reason)

    def _log_dir_offline(self, path: str, reason: str) -> None:
        is_last = self._logs is None or not any(each.is_online for each in self._logs.directories)
        if path == self._config.metadata_log_dir.rstrip("/") or is_last:
            self._fail(f"log folder {path} is offline: {reason}")
