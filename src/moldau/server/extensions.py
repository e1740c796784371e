"""The contributions of a broker's subsystems, merged by kind."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from moldau.cluster.controller.channel import ControllerChannel
from moldau.cluster.internal_topics import InternalTopic
from moldau.network.own_calls import CallDeclaration
from moldau.network.own_serving import CallHandlers
from moldau.network.served import Handler, HandlerTable, served
from moldau.protocol.api import OWN_API_KEY_MIN
from moldau.server.coordinators.registry import CoordinatorRegistry
from moldau.server.requests.dispatch import DirectHandlers
from moldau.server.requests.throttles import Throttles
from moldau.server.subsystem import Contribution, HealthCheck
from moldau.server.topics.partition_kinds import PartitionKinds

K = TypeVar("K")
V = TypeVar("V")


class Extensions:
    """The merged contributions. The object is empty when it is passed to the subsystems that use it.

    The contributions of later subsystems are then added. It is complete before the first subsystem starts. No
    two contributions have the same key.
    """

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        """Handlers of all APIs. The handler of one of our own APIs declares the right that it checks."""
        self.own_calls: dict[int, CallDeclaration[Any, Any]] = {}
        """The declarations of our own calls that this broker answers, by API key."""
        self.direct: DirectHandlers | None = None
        self.throttles = Throttles()
        self.channel: ControllerChannel | None = None
        """The channel to the controller of this process; None when the process has no controller."""
        self.kinds = PartitionKinds()
        self.coordinators = CoordinatorRegistry()
        self.internal_topics: dict[str, InternalTopic] = {}
        self.checks: dict[str, HealthCheck] = {}
        self.notices: dict[str, HealthCheck] = {}
        self._in_hand: list[Callable[[], Mapping[str, int]]] = []

    def add(self, contribution: Contribution) -> None:
        """Merge the additions of another subsystem. Raises ``ValueError`` for a second entry of a key, and
        for an API of our own that declares no right."""
        self._add_handlers(contribution.handlers, contribution.calls)
        if contribution.direct is not None:
            if self.direct is not None:
                raise ValueError("the direct handlers of two subsystems cannot share a turn")
            self.direct = contribution.direct
        self.throttles.add(contribution.throttles)
        if contribution.channel is not None:
            if self.channel is not None:
                raise ValueError("a node has one controller")
            self.channel = contribution.channel
        self.kinds.add(contribution.kinds)
        for entry in contribution.coordinators:
            self.coordinators.add(entry)
            self._add_handlers(entry.handlers, entry.calls)
            _merge("internal topic", self.internal_topics, {entry.topic.name: entry.topic})
        for topic in contribution.internal_topics:
            _merge("internal topic", self.internal_topics, {topic.name: topic})
        _merge("health check", self.checks, contribution.checks)
        _merge("notice", self.notices, contribution.notices)
        self._in_hand.append(contribution.in_hand)

    def _add_handlers(self, handlers: HandlerTable, calls: Sequence[CallHandlers]) -> None:
        for table in (handlers, *(each.table() for each in calls)):
            for api_key, handler in table.items():
                if api_key >= OWN_API_KEY_MIN and served(handler).right is None:
                    raise ValueError(f"API {api_key} is our own, and its row (Served) declares no right")
            _merge("API key", self.handlers, table)
        for each in calls:
            self.own_calls.update(each.calls)

    def in_hand(self) -> dict[str, int]:
        """Return numbers that show the work in progress and the memory in use, by name."""
        return {name: count for read in self._in_hand for name, count in read().items()}


def _merge(noun: str, known: dict[K, V], added: Mapping[K, V]) -> None:
    for key, value in added.items():
        if key in known:
            raise ValueError(f"{noun} {key!r} is contributed by two subsystems")
        known[key] = value
