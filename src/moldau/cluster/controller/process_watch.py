"""Notices that the process of a broker has ended, and lets the controller fence the broker at once.

The rules are in :mod:`moldau.cluster.decisions.ended_processes`. This module notices ended connections, and
probes the listeners of suspects.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

from moldau.cluster.controller.controller import Controller
from moldau.cluster.controller.service import ControllerService
from moldau.cluster.decisions.ended_processes import Probe, Suspect
from moldau.cluster.image.registrations import Endpoint
from moldau.metrics.meters import Counter
from moldau.network.context import ConnectionContext

logger = logging.getLogger(__name__)

PROBES_AT_ONCE_MAX: Final = 32
"""Maximum number of connections that are tried at the same time."""


class ListenerProbe(Protocol):
    """Checks whether a process listens on an address."""

    async def is_refused(self, host: str, port: int) -> bool:
        """Whether a connection to this address is refused, because the machine is up and no process listens
        on the port.

        Returns False in all other cases, for example if there is no response in time. An open connection is
        closed at once. Raises no exception.
        """
        ...


class ProcessWatch:
    """Watches the brokers while this node is the active controller."""

    def __init__(
        self,
        node_id: int,
        controller: Controller,
        service: ControllerService,
        probe: ListenerProbe,
        fenced: Counter,
    ) -> None:
        """``fenced`` counts the brokers that are fenced before their sessions expire."""
        self._node_id = node_id
        self._controller = controller
        self._service = service
        self._probe = probe
        self._fenced = fenced
        self._watched: set[str] = set()
        """Ids of the open connections on which a heartbeat has arrived."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(PROBES_AT_ONCE_MAX)
        service.on_leadership.append(self._on_leadership)

    def heartbeat_received(self, connection: ConnectionContext, broker_id: int, epoch: int) -> None:
        """Store that an accepted heartbeat arrived on this connection."""
        name = connection.connection_id
        self._controller.ended_processes.heartbeat_received(broker_id, epoch, name)
        if name not in self._watched:
            self._watched.add(name)
            connection.when_closed(partial(self._connection_ended, name))

    def close(self) -> None:
        """Stop all probes."""
        for task in self._tasks:
            task.cancel()

    def _connection_ended(self, name: str) -> None:
        self._watched.discard(name)
        if self._service.is_active:
            self._examine(self._controller.ended_processes.connection_ended(self._controller.image, name))

    def _on_leadership(self, began: bool) -> None:
        self.close()
        if began:
            self._examine(
                self._controller.ended_processes.leadership_began(self._controller.image, self._node_id)
            )

    def _examine(self, probes: Iterable[Probe]) -> None:
        loop = asyncio.get_running_loop()
        for probe in probes:
            task = loop.create_task(self._follow(probe))
            self._tasks.add(task)
            task.add_done_callback(self._finished)

    async def _follow(self, probe: Probe) -> None:
        """Probe a suspect until there is evidence, or until the suspicion is over."""
        step: Probe | Suspect | None = probe
        while isinstance(step, Probe):
            await asyncio.sleep(step.delay_ms / 1000)
            is_refused = await self._all_refuse(step.endpoints)
            step = self._controller.ended_processes.probed(
                self._controller.image, step.suspect, is_refused=is_refused
            )
        if step is not None and await self._service.fence_ended(step):
            self._fenced.mark()

    async def _all_refuse(self, endpoints: Iterable[Endpoint]) -> bool:
        async with self._places:
            for endpoint in endpoints:
                if not await self._probe.is_refused(endpoint.host, endpoint.port):
                    return False
        return True

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the controller failed to examine a broker's process", exc_info=error)
