"""The contract between a broker and its subsystems.

A subsystem is one feature of a broker, with everything that the feature adds to the broker: handlers, kinds
of partitions, coordinators, internal topics, health checks. A broker consists of its metadata, a list of
subsystems, one dispatcher over their handlers, and its listeners. The list is made in one place,
:mod:`moldau.server.composition`, from the configuration.

The contract, in the order of a broker's life
=============================================
1. **Construction**, in list order. A subsystem gets the broker's context, and subsystems that are before it
   in the list. Nothing is assigned to it later. If two subsystems need each other, the earlier subsystem gets
   an object (``Extensions``) at its construction, and the contributions of later subsystems are added to this
   object. A constructor registers meters, but starts no task and changes no file.
2. **Contribution**: :meth:`Subsystem.contribution` is read once, right after the construction.
3. :meth:`Subsystem.start`, in list order; each call is awaited before the next one. At this step no partition
   is open, no image was received, and the broker is not registered with the controller.
4. :meth:`Subsystem.on_image`, in list order: first with all metadata, then with each change, until the
   subsystem's own :meth:`~Subsystem.stop` begins. The method is synchronous. If it raises an exception, the
   exception is logged, and the next subsystem still gets the image.
5. :meth:`Subsystem.reconfigure`, in list order, after the image that changes the broker's configuration was
   given to all of them.
6. :meth:`Subsystem.listening`, in list order, when the first image was given to all of them and the listeners
   are open. Requests may arrive from here on.
7. :meth:`Subsystem.serve`, in list order, when this broker is registered and unfenced and its image shows it.
8. :meth:`Subsystem.drain`, in reverse order: the node is about to stop. Listeners are still open. Leaderships
are handed over, and waiting requests are answered.
9. The listeners close. No request is read any more, and requests in progress are answered or ended.
10. :meth:`Subsystem.freeze`, in list order: from here on no partition is opened, led or closed. Therefore a
    subsystem that stops before the subsystem of the partitions can rely on unchanged partitions.
11. :meth:`Subsystem.stop`, in reverse order: remaining work is finished or cancelled, and files are closed.
    When it returns, no task of the subsystem is left. A subsystem may still be called after its stop, for
    example by a partition after a truncation of its log. Such a call must not start a task.

Steps 8, 10 and 11 are done for every subsystem of the list, even for a subsystem that was not started because
the start of an earlier one failed. They are also done if another subsystem fails in one of these steps.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from moldau.cluster.controller.channel import ControllerChannel
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.cluster.image.registrations import Endpoint
from moldau.cluster.internal_topics import InternalTopic
from moldau.cluster.publisher import MetadataPublisher
from moldau.network.own_serving import CallHandlers
from moldau.network.served import HandlerTable
from moldau.server.coordinators.entry import CoordinatorEntry
from moldau.server.requests.dispatch import DirectHandlers
from moldau.server.requests.throttles import Throttle
from moldau.server.topics.partition_kinds import KindClaim

logger = logging.getLogger(__name__)

HealthCheck = Callable[[], str | None]
"""Checks a part of the node. Returns the problem in a sentence, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """Everything that a subsystem adds to a broker."""

    handlers: HandlerTable = field(default_factory=dict)
    """Handlers of the subsystem's APIs, by API key."""
    calls: Sequence[CallHandlers] = ()
    """Tables of our own calls that the subsystem answers. Each table has the service that answers its calls.
    These calls need no handlers."""
    direct: DirectHandlers | None = None
    """Direct handlers of the subsystem's APIs, and the object that combines their work in an iteration of the
    event loop."""
    throttles: Mapping[int, Throttle] = field(default_factory=dict)
    """Throttles of requests, by API key; see :mod:`moldau.server.requests.throttles`."""
    kinds: Sequence[KindClaim] = ()
    """The subsystem's kinds of partitions, each with its topics."""
    coordinators: Sequence[CoordinatorEntry] = ()
    """Kinds of coordinators, with their topics and APIs."""
    internal_topics: Sequence[InternalTopic] = ()
    """The topics that the subsystem needs, with their properties at creation. The first request that needs a
    topic creates it."""
    channel: ControllerChannel | None = None
    """The channel to the active controller. It is set only in a cluster whose only voter is this node."""
    checks: Mapping[str, HealthCheck] = field(default_factory=dict)
    """Health checks by name. If a check fails, the node is unhealthy."""
    notices: Mapping[str, HealthCheck] = field(default_factory=dict)
    """Known faults of a running node by name, for example a skipped record."""
    in_hand: Callable[[], Mapping[str, int]] = dict
    """Numbers that show the work in progress and the memory in use, by name. All of them are zero on an idle
    node."""


class Subsystem:
    """A feature of a broker. The default implementations of the methods do nothing."""

    def contribution(self) -> Contribution:
        """Everything that this subsystem adds to the broker."""
        return Contribution()

    async def start(self) -> None:
        """Prepare for the first image. Raises ``KafkaError`` when the broker cannot run in this state."""

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply a change of the metadata."""

    def reconfigure(self) -> None:
        """Apply a change of the broker's dynamic configuration."""

    async def listening(self, endpoints: Sequence[Endpoint]) -> None:
        """Start work that needs open listeners. Clients connect to the listeners at ``endpoints``."""

    async def serve(self) -> None:
        """Start work that needs a registered and unfenced broker. From now on, the cluster uses this
        broker."""

    async def drain(self) -> None:
        """Hand over leaderships and answer waiting requests, because the broker is about to stop."""

    def freeze(self) -> None:
        """Keep the partitions and their roles unchanged from now on, because the subsystems are about to
        stop."""

    async def stop(self) -> None:
        """Stop the subsystem. This method may be called twice, and it may be called without :meth:`start`."""


S = TypeVar("S", bound=Subsystem)


class SubsystemList:
    """The subsystems of a broker. The broker calls them in the steps of the contract."""

    def __init__(self, subsystems: Sequence[Subsystem]) -> None:
        self._subsystems = tuple(subsystems)
        self._following = list(subsystems)
        """The subsystems whose :meth:`stop` has not begun."""
        self._publisher: MetadataPublisher | None = None

    def __iter__(self) -> Iterator[Subsystem]:
        return iter(self._subsystems)

    def find(self, kind: type[S]) -> S | None:
        """The subsystem of a class; None if the list contains no such subsystem."""
        return next((each for each in self._subsystems if isinstance(each, kind)), None)

    def get(self, kind: type[S]) -> S:
        """The subsystem of a class. The list must contain it."""
        found = self.find(kind)
        assert found is not None, f"the list lacks {kind.__name__}"
        return found

    async def start(self) -> None:
        for each in self._subsystems:
            await each.start()

    def follow(self, publisher: MetadataPublisher) -> None:
        """Give every subsystem the current image, and then every change of it."""
        self._publisher = publisher
        publisher.subscribe(self)

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Give the image to every subsystem. If the image changes the configs of brokers, then tell every
        subsystem to reconfigure. These are the steps 4 and 5 of the contract in the module's docstring."""
        for each in self._following:
            try:
                each.on_image(delta, image)
            except Exception:
                # If a subsystem raises an exception, the other subsystems must still get the new metadata.
                offset = image.provenance.offset
                logger.exception("%s failed on metadata offset %d", type(each).__name__, offset)
        if any(kind == ResourceType.BROKER for kind, _ in delta.configs.entries):
            self._reconfigure()

    def _reconfigure(self) -> None:
        for each in self._following:
            try:
                each.reconfigure()
            except Exception:
                logger.exception("%s does not follow the configuration", type(each).__name__)

    async def listening(self, endpoints: Sequence[Endpoint]) -> None:
        for each in self._subsystems:
            await each.listening(endpoints)

    async def serve(self) -> None:
        for each in self._subsystems:
            await each.serve()

    async def drain(self) -> None:
        await in_spite_of_errors(*(each.drain for each in reversed(self._subsystems)))

    async def stop(self) -> None:
        await in_spite_of_errors(
            self._freeze, *(partial(self._stop, each) for each in reversed(self._subsystems))
        )
        if self._publisher is not None:
            self._publisher.unsubscribe(self)

    async def _freeze(self) -> None:
        for each in self._subsystems:
            each.freeze()

    async def _stop(self, subsystem: Subsystem) -> None:
        self._following = [each for each in self._following if each is not subsystem]
        await subsystem.stop()


async def in_spite_of_errors(*steps: Callable[[], Awaitable[None]]) -> None:
    """Run every step, even after an error or a cancellation. Then raise the first error."""
    failure: BaseException | None = None
    for step in steps:
        try:
            await step()
        except (Exception, asyncio.CancelledError) as error:
            failure = failure or error
    if failure is not None:
        raise failure
