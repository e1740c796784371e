"""A kind of coordinator on a broker. An object of this module has everything that a broker needs for the
kind: its runtime, topic, handlers and regular work.

``server/coordinators/subsystem.py`` hosts every kind through this interface. The subsystem lets the
coordinators lead their partitions and unloads them, serves their APIs, finds them for clients, and reports
their health.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.internal_topics import STATE_TOPICS, InternalTopic
from moldau.config.broker import BrokerConfig
from moldau.coordinators.runtime import CoordinatorRuntime
from moldau.metrics import Meters
from moldau.network.authorization import Authorizer
from moldau.network.context import RequestContext
from moldau.network.own_serving import CallHandlers
from moldau.network.served import HandlerTable
from moldau.runtime import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class KindContext:
    """The parts of a broker that a kind of coordinator may use."""

    machine: Machine
    config: BrokerConfig
    """The static configuration."""
    image: Callable[[], MetadataImage]
    """Returns the current metadata."""
    authorizer: Authorizer
    meters: Meters


class HostedKind:
    """The coordinators of one kind on a broker. A kind with APIs or regular work has a subclass, which
    replaces some of these methods."""

    start_waits = False
    """Whether the node is ready only after the coordinators are loaded."""

    def __init__(self, name: str, runtime: CoordinatorRuntime[Any, Any], topic: InternalTopic) -> None:
        """``name`` is the name of the kind in health checks. ``topic`` has the properties with which the
        kind's topic is created.

        Raises ``ValueError`` if the topic differs from the runtime's topic, or if controllers do not know the
        topic.
        """
        if topic.name != runtime.kind.topic.name:
            raise ValueError(f"coordinators of {runtime.kind.topic.name} cannot stand on {topic.name}")
        if STATE_TOPICS.get(topic.name) is not runtime.kind.topic:
            raise ValueError(
                f"{topic.name} has coordinators, and no row in STATE_TOPICS (cluster/internal_topics.py),"
                " by which controllers keep it from being lost"
            )
        self.name = name
        self.runtime = runtime
        self.topic = topic

    def handlers(self) -> HandlerTable:
        """Kafka's APIs that the coordinators serve."""
        return {}

    def calls(self) -> Sequence[CallHandlers]:
        """Moldau's own calls that the coordinators serve."""
        return ()

    def check_lookup(self, context: RequestContext) -> None:
        """Raise an authorization error for a principal that is not allowed to find the coordinators."""

    def on_change(self, partition: int) -> None:
        """Called when the term of a coordinator has begun or ended."""

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply a change of the metadata, and return immediately."""

    def in_hand(self) -> Mapping[str, int]:
        """Return numbers that show the work in progress, by name. All of them are zero on an idle node."""
        return {}

    async def drain(self) -> None:
        """Send responses to waiting requests and unload the coordinators. The node's listeners are still
        open, so that clients get the responses."""
        await self.runtime.close()

    async def stop(self) -> None:
        """Stop the remaining work. This method may be called without :meth:`drain`, and twice."""
