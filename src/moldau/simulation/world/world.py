"""A world has one seed, one event loop, one network, and hosts by name."""

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from moldau.simulation.seeds import stream
from moldau.simulation.world.clock import EPOCH_MS
from moldau.simulation.world.host import Host
from moldau.simulation.world.loop import SimulatedLoop
from moldau.simulation.world.network import Network, NetworkOptions
from moldau.simulation.world.object_store import SimulatedObjectStore

T = TypeVar("T")


class World:
    """The container of a history. Use it as a context manager. At the end of the block the world ends."""

    def __init__(
        self,
        seed: int,
        *,
        network: NetworkOptions | None = None,
        time_limit_s: float = 3_600.0,
        step_limit: int = 20_000_000,
    ) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(seed, time_limit_s=time_limit_s, step_limit=step_limit)
        self.network = Network(self.loop, seed, network)
        self.object_store = SimulatedObjectStore(
            stream(seed, "object store"), lambda: EPOCH_MS + int(self.loop.elapsed_s() * 1_000)
        )
        self.silences: list[str] = []
        """Clients' requests that got no response in time."""
        self.object_store.on_event = lambda event: self.loop.trace(event.encode())

    def host(self, name: str) -> Host:
        """Return the host with this name. The first call for a name creates the host."""
        host = self.network.hosts.get(name)
        if host is None:
            host = self.network.hosts[name] = Host(self, name, len(self.network.hosts))
        return host

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        """Run the world until ``story`` ends. The task of the story belongs to no host."""
        return self.loop.run_until_complete(story)

    def errors(self) -> list[str]:
        """Errors of three kinds: exceptions of callbacks, exceptions of tasks that were not awaited, and
        syncs on the event loop of a node that serves clients."""
        errors = [f"{context.get('message')}: {context.get('exception')!r}" for context in self.loop.errors]
        return errors + [sync for process in self.loop.processes for sync in process.loop_syncs]

    def __enter__(self) -> "World":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.dispose()
