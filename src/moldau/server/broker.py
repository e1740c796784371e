"""The broker's half of a node. It consists of a list of subsystems that share the node's metadata, and of the
listeners for clients."""

import asyncio
from typing import Final, TypeVar

from moldau.cluster.controller.channel import ControllerChannel
from moldau.replication.waiters import WaitingRoom
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.composition import compose_broker
from moldau.server.context import BrokerContext, NodeContext
from moldau.server.extensions import Extensions
from moldau.server.identity import Address
from moldau.server.metadata.cluster_view import ClusterView
from moldau.server.metadata.metadata_view import MetadataView
from moldau.server.observing.health_and_metrics import quorum_notice
from moldau.server.subsystem import Subsystem, SubsystemList, in_spite_of_errors
from moldau.server.subsystems.listeners import ListenersSubsystem
from moldau.server.topics.registry import PartitionRegistry

S = TypeVar("S", bound=Subsystem)

RETRY_S: Final = 0.05


class Broker:
    """Runs the subsystems of a broker by the contract of :mod:`moldau.server.subsystem`."""

    def __init__(self, node: NodeContext, channel: ControllerChannel, extensions: Extensions) -> None:
        """``channel`` sends requests to the active controller, in this process or in another process.
        ``extensions`` contains the contributions of all subsystems of the node."""
        self._publisher = node.metadata.publisher
        self._metadata = node.metadata
        self._catch_up_timeout_ms = node.config.integer("initial.broker.registration.timeout.ms")
        context = _context(node, channel, extensions)
        self._subsystems = SubsystemList(compose_broker(context, extensions))
        self._listeners = self._subsystems.get(ListenersSubsystem)

    def find(self, kind: type[S]) -> S | None:
        """The subsystem of a class; None if the broker has no such subsystem."""
        return self._subsystems.find(kind)

    async def start(self) -> Address:
        """Start the broker, and wait until clients are served. Returns the address of the first listener."""
        await self._subsystems.start()
        await _catch_up(self._metadata, self._catch_up_timeout_ms / 1000)
        if reason := self._publisher.check_levels():
            raise KafkaError(ErrorCode.unsupported_version, reason)
        self._subsystems.follow(self._publisher)
        endpoints = await self._listeners.open()
        await self._subsystems.listening(endpoints)
        await self._subsystems.serve()
        return Address(endpoints[0].host, endpoints[0].port)

    async def stop(self) -> None:
        """Stop the broker cleanly. This method may be called in any state of the broker."""
        await in_spite_of_errors(self._subsystems.drain, self._listeners.close, self._subsystems.stop)


async def _catch_up(metadata: MetadataView, timeout_s: float) -> None:
    """Wait until the image contains all metadata that were committed at the time of the call.

    An older image may show that a replica has left this broker, or it may show a topic with another id. A
    broker that acts on such an image would close the log of a partition that, in the current metadata, is on
    this broker again. Raises ``KafkaError`` when there is no quorum.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            await metadata.until_current()
            return
        except (KafkaError, TimeoutError) as error:
            if loop.time() >= deadline:
                problems = quorum_notice(metadata)
                raise KafkaError(
                    ErrorCode.request_timed_out,
                    f"The broker cannot read the current metadata: {error}"
                    f"{'' if problems is None else f' ({problems})'}",
                ) from error
            await asyncio.sleep(RETRY_S)


def _context(node: NodeContext, channel: ControllerChannel, extensions: Extensions) -> BrokerContext:
    publisher, identity = node.metadata.publisher, node.identity
    return BrokerContext(
        machine=node.machine,
        config=node.config,
        identity=identity,
        metadata=node.metadata,
        logs=node.logs,
        meters=node.meters,
        listeners=node.listeners,
        features=node.features,
        fail=node.fail,
        incarnation_id=node.machine.entropy.uuid4(),
        view=ClusterView(identity.cluster_id, identity.node_id, lambda: publisher.image),
        channel=channel,
        partitions=PartitionRegistry(lambda: publisher.image, extensions.kinds.stand_in),
        arrivals=WaitingRoom(),
        authorizer=node.authorizer,
    )
