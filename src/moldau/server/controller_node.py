"""The controller's half of a node: its replica of the metadata quorum and what stands on it."""

import asyncio
from collections.abc import Callable

from moldau.cluster.controller import Controller
from moldau.cluster.controller_service import ControllerService, LocalControllerChannel
from moldau.cluster.formatter import METADATA_FOLDER
from moldau.cluster.kafka_config_policy import KafkaConfigPolicy
from moldau.cluster.meta_properties import FormatError
from moldau.cluster.publisher import MetadataPublisher
from moldau.cluster.quorum_log import QuorumMetadataLog
from moldau.cluster.snapshots import SnapshotGenerator
from moldau.config.broker import BrokerConfig
from moldau.config.listeners import Endpoint
from moldau.network.limits import Listener
from moldau.network.server import SocketServer
from moldau.protocol.api import Scope
from moldau.quorum.driver import QuorumDriver
from moldau.quorum.state_store import QuorumStateStore
from moldau.quorum.voters import ReplicaKey, Voter, VoterSet
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.server import settings
from moldau.server.controller_api import ControllerApi
from moldau.server.dispatch import Dispatcher
from moldau.server.identity import Identity
from moldau.server.topic_configs import EffectiveConfigs
from moldau.storage.snapshot_log import SnapshotLog
from moldau.storage.topic_partition import TopicPartition

NETWORK_GRACE_S = 1.0
CURRENT_TIMEOUT_S = 30.0


class ControllerNode:
    """Opens the metadata log, runs the quorum on it, and the controller while this node leads."""

    def __init__(
        self,
        machine: Machine,
        config: BrokerConfig,
        identity: Identity,
        on_fault: Callable[[str], None],
    ) -> None:
        self.node_id = identity.node_id
        self._machine = machine
        folder = f"{config.metadata_log_dir}/{METADATA_FOLDER}"
        if not machine.disk.is_dir(folder):
            # Formatting makes it. Starting without it would be a new cluster on an old one's data.
            raise FormatError(f"{folder} is missing, though {config.metadata_log_dir} is formatted.")
        self._log = SnapshotLog.open(
            machine,
            folder,
            TopicPartition("__cluster_metadata", 0),
            settings.metadata_log_config(config),
        )
        voters = VoterSet(
            Voter(ReplicaKey(voter.node_id), voter.host, voter.port) for voter in config.quorum_voters
        )
        self.driver = QuorumDriver(
            machine,
            self._log,
            local=ReplicaKey(identity.node_id),
            voters=voters,
            state_store=QuorumStateStore(machine.disk, folder, voters),
            config=settings.quorum_config(config),
            on_fatal=lambda error: on_fault(f"the metadata quorum has failed: {error}"),
        )
        log = self._metadata_log = QuorumMetadataLog(self.driver, self._log, identity.node_id)
        self.publisher = MetadataPublisher(lambda error: on_fault(str(error)))
        self.configs = EffectiveConfigs(config, identity.node_id, lambda: self.publisher.image)
        controller = Controller(
            settings.controller_settings(config, identity.cluster_id),
            KafkaConfigPolicy(lambda: self.configs.broker),
            machine.entropy,
        )
        self.service = ControllerService(identity.node_id, controller, log, self.publisher)
        self._snapshots = SnapshotGenerator(
            log,
            self.publisher,
            bytes_between=config.integer("metadata.log.max.record.bytes.between.snapshots"),
            interval_ms=config.integer("metadata.log.max.snapshot.interval.ms"),
        )
        log.add_listener(self.publisher)
        log.add_listener(self.service)
        log.add_listener(self._snapshots)
        self.channel = LocalControllerChannel(self.service)
        self._config = config
        self._cluster_id = identity.cluster_id
        self._servers: list[tuple[SocketServer, Dispatcher]] = []

    async def until_current(self) -> None:
        """Return when this node's image has every record that was committed at the time of the call.

        The quorum's leader says how far that is. Raises ``KafkaError`` while it cannot be asked.
        """
        committed_end = self.driver.describe().high_watermark
        if committed_end < 0:
            raise KafkaError(ErrorCode.not_controller, "the quorum has committed nothing in this epoch yet")
        async with asyncio.timeout(CURRENT_TIMEOUT_S):
            await self._metadata_log.until_applied(committed_end)

    async def start(self) -> None:
        """Replay the metadata and listen; a lone voter leads when this returns."""
        await self.driver.start()
        for endpoint in self._config.controller_listeners:
            await self._listen(endpoint)

    async def _listen(self, endpoint: Endpoint) -> None:
        api = ControllerApi(self, self._cluster_id, self._config, endpoint)
        dispatcher = Dispatcher(api.table(), Scope.CONTROLLER, workers=self._machine.workers)
        protocol = self._config.security_protocols[endpoint.name]
        listener = Listener(endpoint.name, endpoint.host, endpoint.port, protocol)
        server = SocketServer(dispatcher, [listener], settings.network_limits(self._config))
        api.port = (await server.start())[endpoint.name]
        self._servers.append((server, dispatcher))

    async def stop(self) -> None:
        """Give up leading, stop listening and close the log."""
        self.service.close()
        for server, dispatcher in self._servers:
            await server.stop(NETWORK_GRACE_S)
            await dispatcher.close()
        await self._snapshots.close()
        await self.driver.stop()
        self._log.close()
