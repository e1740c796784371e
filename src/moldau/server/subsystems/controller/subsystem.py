"""The controller of a voter. It decides while this node leads the metadata quorum, and it serves its own
listeners."""

from functools import partial

from moldau.cluster.controller.controller import Controller
from moldau.cluster.controller.listener_probe import TcpListenerProbe
from moldau.cluster.controller.process_watch import ProcessWatch
from moldau.cluster.controller.quorum_changes import QuorumChanges
from moldau.cluster.controller.service import ControllerService, LocalControllerChannel
from moldau.cluster.decisions.view import QuorumMembers
from moldau.cluster.folders.kafka_bootstrap import kafka_bootstrap_records
from moldau.cluster.kafka_config_policy import KafkaConfigPolicy
from moldau.config.listeners import ListenerEndpoint
from moldau.network.limits import Listener
from moldau.network.server import SocketServer
from moldau.protocol.api import Scope
from moldau.server import settings
from moldau.server.context import NodeContext
from moldau.server.metadata.membership import controller_endpoints
from moldau.server.metadata.metadata_node import MetadataNode
from moldau.server.observing.meters import NodeMeters
from moldau.server.requests.dispatch import Dispatcher
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.controller.api import ControllerApi
from moldau.server.subsystems.controller.registration import ControllerRegistrar

NETWORK_GRACE_S = 1.0


class ControllerSubsystem(Subsystem):
    """A controller and its listeners. They use the node's replica of the metadata."""

    def __init__(self, context: NodeContext, metadata: MetadataNode) -> None:
        """``metadata`` is the node's replica of the metadata. The controller also writes to this replica."""
        machine, config = context.machine, context.config
        self._machine = machine
        self._config = config
        self._metadata = metadata
        self._listeners = context.listeners
        self._features = context.features
        self._authorizer = context.authorizer
        identity = context.identity
        controller = Controller(
            settings.controller_settings(config, identity.cluster_id, context.features),
            KafkaConfigPolicy(lambda: metadata.configs.broker),
            machine.entropy,
            members=self._members,
        )
        self._changes = QuorumChanges(
            metadata.driver, partial(metadata.check_voter, image=lambda: controller.image)
        )
        self.service = ControllerService(
            identity.node_id,
            controller,
            metadata.log,
            metadata.publisher,
            machine.workers,
            bootstrap_records=kafka_bootstrap_records(machine.disk, config.metadata_log_dir),
            quorum_changes=self._changes,
        )
        # The service is added after the publisher, because the controller starts a term with the publisher's
        # image.
        metadata.log.add_listener(self.service)
        self.channel = LocalControllerChannel(self.service)
        self._watch = self._process_watch(controller, context.meters)
        # A broker that is configured as the only controller does not register as a controller.
        self._registrar = (
            None
            if settings.is_whole_cluster(config)
            else ControllerRegistrar(context, metadata, self.service)
        )
        self._servers: list[tuple[SocketServer, Dispatcher]] = []

    def _process_watch(self, controller: Controller, meters: NodeMeters) -> ProcessWatch | None:
        if not self._config.flag("broker.session.early.end.enable"):
            return None
        probe = TcpListenerProbe([endpoint.host for endpoint in controller_endpoints(self._config)])
        fenced = meters.registry.scoped("moldau.controller", "Sessions").counter(
            "EarlyEndsPerSec",
            "Brokers that this controller fenced before the end of their sessions, because their process had"
            " ended.",
        )
        return ProcessWatch(self._config.node_id, controller, self.service, probe, fenced)

    def contribution(self) -> Contribution:
        return Contribution(channel=self.channel)

    async def start(self) -> None:
        """Open the listeners for other voters, brokers and tools."""
        for endpoint in self._config.controller_listeners:
            await self._listen(endpoint)
        if self._registrar is not None:
            self._registrar.start()

    def _members(self) -> QuorumMembers:
        driver = self._metadata.driver
        voters = {voter.key.id for voter in driver.voters} | self._changes.adding
        return QuorumMembers(frozenset(voters) - {self._metadata.identity.node_id}, driver.observer_ids)

    async def _listen(self, endpoint: ListenerEndpoint) -> None:
        api = ControllerApi(
            self._metadata,
            self.service,
            self._config,
            lambda: self._listeners[endpoint.name],
            self._features,
            self._authorizer,
            self._watch,
        )
        dispatcher = Dispatcher(
            api.table(),
            Scope.CONTROLLER,
            workers=self._machine.workers,
            unexpected=self._machine.unexpected,
        )
        protocol = self._config.security_protocols[endpoint.name]
        listener = Listener(endpoint.name, endpoint.host, endpoint.port, protocol)
        server = SocketServer(dispatcher, [listener], settings.network_limits(self._config))
        ports = await server.start()
        self._listeners.note(endpoint.name, endpoint.host, ports[endpoint.name])
        self._servers.append((server, dispatcher))

    async def stop(self) -> None:
        """Resign from the quorum, and close the listeners."""
        if self._registrar is not None:
            await self._registrar.close()
        self.service.close()
        if self._watch is not None:
            self._watch.close()
        for server, dispatcher in self._servers:
            await server.stop(NETWORK_GRACE_S)
            await dispatcher.close()
