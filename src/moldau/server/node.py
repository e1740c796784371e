"""A node: puts the rooms together, and starts and stops them in order.

Start: identity → metadata (quorum, controller) → logs → partitions as the image says → coordinators →
listeners → registration → unfenced. Stop is the way back, and leaves the marks of a clean stop.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Final

from moldau.cluster.meta_properties import FormatError
from moldau.config.broker import BrokerConfig
from moldau.config.topic import TopicConfig
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.quorum.state_store import QuorumStateError
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.server import settings
from moldau.server.broker import Broker
from moldau.server.controller_node import ControllerNode
from moldau.server.identity import Address, identify
from moldau.server.metadata_node import MetadataNode
from moldau.server.monitoring import controller_monitoring
from moldau.server.tiered_node import TieredNode
from moldau.storage.log_directory import LogDirectoryError
from moldau.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

UNUSABLE_FOLDER: Final = (FormatError, LogDirectoryError, QuorumStateError)
"""How the rooms say that what lies in a folder is not theirs, or broken."""


class Node:
    """A node on one machine: a controller, or a broker and a controller (``process.roles``).

    ``await start()`` returns when clients are served; ``await stop()`` ends it cleanly from any state;
    ``await failed()`` returns the reason when it cannot go on by itself.
    """

    def __init__(self, config: BrokerConfig, machine: Machine, *, format_new: bool = False) -> None:
        """``format_new``: format folders that are not formatted yet instead of refusing them."""
        self._config = config
        self._machine = machine
        self._format_new = format_new
        self._failure: asyncio.Future[str] | None = None
        self._closing = contextlib.AsyncExitStack()
        self._running: Broker | None = None
        self._controller_monitoring_port: int | None = None
        self.metadata: MetadataNode | None = None
        """The replica of the metadata of a running node, for tools and judges in its process."""

    @property
    def monitoring_port(self) -> int | None:
        """Where /metrics and /health are served; None when ``metrics.listener`` is not set."""
        return self._controller_monitoring_port if self._running is None else self._running.monitoring_port

    @property
    def coordinators(self) -> DisklessCoordinator | None:
        """The diskless coordinators of a running node, for tools and judges in its process."""
        return None if self._running is None else self._running.coordinators

    def in_hand(self) -> Mapping[str, int]:
        """What a running node has taken and not given back; all zero when nobody asks for anything."""
        return {} if self._running is None else self._running.in_hand()

    @property
    def tiered(self) -> TieredNode | None:
        """The remote tier of a running node, for tools and judges in its process."""
        return None if self._running is None else self._running.tiered

    async def start(self) -> Address:
        """Start everything; return the address that clients use, of a lone controller its listener's.

        What fails is raised, after what had been started is stopped again.

        Raises ``KafkaError(kafka_storage_error)`` for a folder whose files cannot be used, with what the
        operator should know in one sentence.
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
        settings.check_supported(config)
        for key, feature in settings.without_effect(config).items():
            logger.warning("%s has no effect yet, it waits for %s", key, feature)
        identity = identify(machine, config, format_new=self._format_new)
        logs = LogManager(
            machine,
            list(config.log_dirs),
            settings.log_manager_settings(config),
            on_offline=self._log_dir_offline,
            guarded=settings.GUARDED_TOPICS,
        )
        # Before the metadata log is touched: this takes the lock against a second process. Topics get
        # their own configs when the image opens them, long before the first round of retention.
        defaults = settings.log_config(TopicConfig.effective(config, {}))
        await logs.start(lambda topic: defaults)
        self._closing.push_async_callback(logs.stop)
        metadata = self.metadata = MetadataNode(machine, config, identity, self._fail, logs)
        await logs.note_boot()
        self._closing.push_async_callback(metadata.stop)
        controller = ControllerNode(machine, config, metadata)
        self._closing.push_async_callback(controller.stop)
        await metadata.start()
        await controller.start()
        if not config.is_broker:
            return await self._serve_controller(metadata, controller, logs)
        broker = self._running = Broker(machine, config, identity, metadata, controller.channel, logs)
        self._closing.push_async_callback(broker.stop)
        return await broker.start()

    async def _serve_controller(
        self, metadata: MetadataNode, controller: ControllerNode, logs: LogManager
    ) -> Address:
        """Finish the start of a node without a broker."""
        monitoring = controller_monitoring(self._machine, self._config, metadata, logs)
        if monitoring is not None:
            self._controller_monitoring_port = await monitoring.start()
            self._closing.push_async_callback(monitoring.stop)
        return controller.addresses[0]

    async def stop(self) -> None:
        """Stop what runs, in reverse order; harmless when called twice."""
        await self._closing.aclose()

    async def failed(self) -> str:
        """Wait for a failure that the node cannot survive."""
        assert self._failure is not None, "the node was not started"
        return await asyncio.shield(self._failure)

    def _fail(self, reason: str) -> None:
        logger.error("the node cannot go on: %s", reason)
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(reason)

    def _log_dir_offline(self, path: str, reason: str) -> None:
        if path == self._config.metadata_log_dir or len(self._config.log_dirs) == 1:
            self._fail(f"log folder {path} is offline: {reason}")
