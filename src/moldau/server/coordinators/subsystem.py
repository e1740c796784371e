"""The subsystem that hosts a kind of coordinator."""

from typing import Generic, TypeVar

from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage
from moldau.coordinators.hosted import HostedKind, KindContext
from moldau.server.context import BrokerContext
from moldau.server.coordinators.entry import entry_of
from moldau.server.subsystem import Contribution, Subsystem

K = TypeVar("K", bound=HostedKind)


def kind_context(context: BrokerContext) -> KindContext:
    """Return the parts of a broker that its kinds of coordinators use."""
    publisher = context.metadata.publisher
    return KindContext(
        machine=context.machine,
        config=context.config,
        image=lambda: publisher.image,
        authorizer=context.authorizer,
        meters=context.meters.registry,
    )


class HostedCoordinators(Subsystem, Generic[K]):
    """The coordinators of one kind that this broker leads."""

    def __init__(self, kind: K) -> None:
        self.kind = kind

    def contribution(self) -> Contribution:
        kind = self.kind
        return Contribution(
            coordinators=[entry_of(kind)],
            checks={kind.name: kind.runtime.problem},
            notices={kind.name: kind.runtime.notice},
            in_hand=kind.in_hand,
        )

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.kind.on_image(delta, image)

    async def drain(self) -> None:
        await self.kind.drain()

    async def stop(self) -> None:
        await self.kind.stop()
