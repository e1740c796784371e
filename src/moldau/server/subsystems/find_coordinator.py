"""FindCoordinator for coordinators of every kind."""

import logging
from typing import Final

from moldau.server.context import BrokerContext
from moldau.server.extensions import Extensions
from moldau.server.handlers.find_coordinator import CoordinatorHandlers
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.topic_creation_subsystem import TopicsSubsystem

logger = logging.getLogger(__name__)

LOAD_WAIT_S: Final = 5.0
"""Maximum time, in seconds, for which the start of a node waits until coordinators are loaded."""


class CoordinatorsSubsystem(Subsystem):
    """Finds coordinators of all kinds, including the kinds of subsystems that come later in the list."""

    def __init__(self, context: BrokerContext, extensions: Extensions, topics: TopicsSubsystem) -> None:
        self.registry = extensions.coordinators
        self._handlers = CoordinatorHandlers(context.view, topics.creator, extensions.coordinators.lookups)

    def contribution(self) -> Contribution:
        return Contribution(handlers=self._handlers.table())

    async def serve(self) -> None:
        """Wait until the coordinators are loaded. A coordinator that cannot be loaded does not stop the
        start of the node.
        """
        if not await self.registry.until_loaded(LOAD_WAIT_S):
            logger.warning("coordinators are still being loaded; until then clients are told to try again")
