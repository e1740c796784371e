"""The broker's listeners, and the dispatcher that passes requests to the handlers of all subsystems."""

import asyncio
from typing import Final

from moldau.cluster.image.registrations import Endpoint
from moldau.network.server import SocketServer
from moldau.protocol.api import Scope
from moldau.server import settings
from moldau.server.context import BrokerContext
from moldau.server.extensions import Extensions
from moldau.server.handlers.metadata.versions import VersionHandlers, finalized_features
from moldau.server.requests.dispatch import Dispatcher, routes
from moldau.server.subsystem import Subsystem

NETWORK_GRACE_S: Final = 3.0
SECURITY_PROTOCOL_PLAINTEXT: Final = 0


class ListenersSubsystem(Subsystem):
    """Opens the listeners and serves the handlers of all subsystems.

    It must be the last subsystem of the list, because its dispatcher uses the contributions of all others.
    The broker calls :meth:`open` and :meth:`close` between the steps of the subsystems.
    """

    def __init__(self, context: BrokerContext, extensions: Extensions) -> None:
        self._context = context
        machine, meters = context.machine, context.meters
        versions = VersionHandlers(
            Scope.BROKER,
            lambda: handlers,
            context.features,
            self._finalized_features,
            context.view.racks.of_client,
        )
        handlers = routes(versions.table(), extensions.handlers)
        self._dispatcher = Dispatcher(
            handlers,
            Scope.BROKER,
            meters.requests,
            extensions.direct,
            extensions.throttles,
            machine.workers,
            machine.unexpected,
        )
        self.server = SocketServer(
            self._dispatcher,
            settings.broker_listeners(context.config),
            settings.network_limits(context.config),
            end_turn=self._dispatcher.end_turn,
        )
        meters.watch_network((listener.name for listener in self.server.listeners), self.server.counters)

    def _finalized_features(self) -> tuple[int, dict[str, int]]:
        metadata = self._context.metadata
        image = metadata.publisher.image
        return image.provenance.offset, finalized_features(image, metadata.quorum.kraft_version)

    def reconfigure(self) -> None:
        self.server.limits = settings.network_limits(self._context.metadata.configs.broker)

    async def open(self) -> list[Endpoint]:
        """Accept connections. Returns the endpoints for clients."""
        ports = await self.server.start()
        return [
            Endpoint(
                endpoint.name,
                endpoint.host or "127.0.0.1",
                endpoint.port or ports[endpoint.name],
                SECURITY_PROTOCOL_PLAINTEXT,
            )
            for endpoint in self._context.config.advertised_listeners
        ]

    async def close(self) -> None:
        """Stop reading requests. Answer or end the requests in progress."""
        stopping = asyncio.ensure_future(self.server.stop(NETWORK_GRACE_S))
        await asyncio.sleep(0)
        # No more requests are read, so waiting fetches are answered now and not at their deadlines.
        self._context.arrivals.release_all()
        await stopping
        await self._dispatcher.close()
