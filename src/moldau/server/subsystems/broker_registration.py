"""The broker's registration with the controller. The broker registers, sends heartbeats, and hands over its
leaderships before a stop."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from moldau.cluster.broker_lifecycle import BrokerIdentity, BrokerLifecycle, LifecycleTimes
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.registrations import Endpoint, SupportedFeature
from moldau.server.context import BrokerContext
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.storage.folders.log_directory import LogDirectory, previous_broker_epoch

CONTROLLED_SHUTDOWN_TIMEOUT_MS: Final = 300_000
"""Maximum time in ms for the controlled shutdown, as in Apache Kafka. The controller agrees to the stop when
all other active brokers have the new leaders in their metadata."""


class RegistrationSubsystem(Subsystem):
    """Runs the broker's lifecycle after the listeners have opened."""

    def __init__(
        self,
        context: BrokerContext,
        partitions: PartitionsSubsystem,
        on_registered: Callable[[int], None],
    ) -> None:
        """``on_registered`` is called with each new broker epoch, before the first heartbeat that has this
        epoch.
        """
        self._context = context
        self._partitions = partitions
        self._on_registered = on_registered
        self._lifecycle: BrokerLifecycle | None = None
        self._unreported: list[asyncio.TimerHandle] = []
        """A timer for each log directory that failed since the start."""
        context.logs.offline_listeners.append(self._directory_failed)
        self.handed_over = asyncio.Event()
        """Set when :meth:`drain` is done. Other brokers now lead the partitions of this broker, except the
        partitions that no other broker can lead."""

    def contribution(self) -> Contribution:
        return Contribution(checks={"broker": self._problem})

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self._lifecycle is not None:
            self._lifecycle.metadata_moved()

    async def listening(self, endpoints: Sequence[Endpoint]) -> None:
        """Wait until the controller has unfenced this broker and the image shows it."""
        context = self._context
        lifecycle = self._lifecycle = self._new_lifecycle(endpoints)
        await self._partitions.settled()
        ended = lifecycle.start()
        lifecycle.ready()
        unfenced = asyncio.ensure_future(lifecycle.unfenced.wait())
        await asyncio.wait((ended, unfenced), return_when=asyncio.FIRST_COMPLETED)
        if not unfenced.done():
            unfenced.cancel()
            await ended
        ended.add_done_callback(self._ended)
        local_id = context.identity.node_id
        await context.metadata.publisher.until(lambda: context.view.controller_for_clients() == local_id)

    async def drain(self) -> None:
        """Hand over all leaderships that other brokers can have."""
        lifecycle, config = self._lifecycle, self._context.config
        try:
            if lifecycle is None:
                return
            if not config.flag("controlled.shutdown.enable"):
                await lifecycle.stop()
                return
            # The limit is half of the session time-out. If all controllers stop at the same time as this
            # broker, the broker then ends its wait early enough, before its container is killed.
            silence_ms = config.integer("broker.session.timeout.ms") // 2
            await lifecycle.controlled_shutdown(CONTROLLED_SHUTDOWN_TIMEOUT_MS, silence_ms)
        finally:
            for timer in self._unreported:
                timer.cancel()
            self.handed_over.set()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Stop the node, if the task of the lifecycle has failed. The broker then has no valid registration,
        and would serve clients in an expired broker epoch."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._context.fail(str(error))

    def _directory_failed(self, directory: LogDirectory) -> None:
        if self._lifecycle is not None:
            self._lifecycle.directory_failed()
        timeout_s = self._context.config.integer("log.dir.failure.timeout.ms") / 1000
        loop = asyncio.get_running_loop()
        self._unreported.append(loop.call_later(timeout_s, self._check_reported, directory))

    def _check_reported(self, directory: LogDirectory) -> None:
        """Stop the node if the controller does not know yet that a log directory has failed (KIP-858).

        If the node continued, the controller would not move the leaderships of the replicas in this
        directory.
        """
        reported = () if self._lifecycle is None else self._lifecycle.reported_directories
        if directory.directory_id is not None and directory.directory_id not in reported:
            self._context.fail(
                f"log folder {directory.path} is offline, and it could not be reported to a controller for"
                " log.dir.failure.timeout.ms"
            )

    def _registered(self, broker_epoch: int) -> None:
        self._context.logs.broker_epoch = broker_epoch
        self._on_registered(broker_epoch)

    def _problem(self) -> str | None:
        if self._lifecycle is None:
            return "the broker is starting"
        return self._lifecycle.problem()

    def _new_lifecycle(self, endpoints: Sequence[Endpoint]) -> BrokerLifecycle:
        context, config = self._context, self._context.config
        publisher = context.metadata.publisher
        last = publisher.image.brokers.get(context.identity.node_id)
        last_epoch = -1 if last is None else last.epoch
        return BrokerLifecycle(
            BrokerIdentity(
                broker_id=context.identity.node_id,
                cluster_id=context.identity.cluster_id,
                incarnation_id=context.incarnation_id,
                endpoints=endpoints,
                features=[
                    SupportedFeature(name, low, high) for name, (low, high) in context.features.items()
                ],
                log_dirs=tuple(context.identity.directories.values()),
                rack=config.rack,
                previous_broker_epoch=previous_broker_epoch(context.logs.directories, last_epoch),
            ),
            context.channel,
            context.machine.entropy,
            lambda: publisher.image.provenance.offset,
            times=LifecycleTimes(
                heartbeat_interval_ms=config.integer("broker.heartbeat.interval.ms"),
                registration_timeout_ms=config.integer("initial.broker.registration.timeout.ms"),
            ),
            on_registered=self._registered,
            failed_directories=self._failed_directories,
        )

    def _failed_directories(self) -> Sequence[UUID]:
        return [
            each.directory_id
            for each in self._context.logs.directories
            if each.directory_id is not None and not each.is_online
        ]
