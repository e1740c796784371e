"""A machine of the simulated world. It has one disk, one clock and one address, and runs programs."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from moldau.runtime import Machine, SeededEntropy, UnexpectedErrors
from moldau.simulation.seeds import stream
from moldau.simulation.world.clock import SimulatedClock
from moldau.simulation.world.defects import DefectiveEntropy, Defects
from moldau.simulation.world.disks.disk import SimulatedDisk
from moldau.simulation.world.disks.sqlite import open_sqlite
from moldau.simulation.world.process import Process
from moldau.simulation.world.workers import SimulatedWorkers, SyncJob

if TYPE_CHECKING:
    from moldau.simulation.world.world import World

COLD_CHANCES = (0.0, 0.0, 0.0, 0.3)
"""The chances of hosts that bytes of a file are not in memory."""

Program = Callable[[Machine], Coroutine[Any, Any, Any]]


class Host:
    """Runs at most one program at a time. Its disk survives restarts."""

    def __init__(self, world: "World", name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.ip = f"10.0.{number // 250}.{number % 250 + 1}"
        self.up = True
        self.life = 0
        self.boot = 0
        self.process: Process | None = None
        self.defects = Defects(stream(world.seed, "defects", name))
        self.unexpected: list[UnexpectedErrors] = []
        """The unexpected errors of each process."""
        self.clock = SimulatedClock(world.loop)
        self.disk_delay_s = stream(world.seed, "disk delay", name).choice((0.000_3, 0.001, 0.005, 0.03))
        self.sync_jobs: list[SyncJob] = []
        """The jobs of worker threads that have synced files on this host's disk."""
        self.disk = SimulatedDisk(stream(world.seed, "disk", name), self.clock.now_ms, trace=world.loop.trace)
        cold = stream(world.seed, "cold", name)
        self.disk.forgets(cold, cold.choice(COLD_CHANCES))

    @property
    def running(self) -> bool:
        """Whether a program runs on this host."""
        return self.process is not None and self.process.alive

    def machine(self, process: Process) -> Machine:
        """Return the ports for a program on this host."""
        seed = self.world.seed
        disk = self.disk.mount(process)
        entropy = SeededEntropy(stream(seed, "entropy", process.name).getrandbits(64))
        workers = stream(seed, "workers", process.name)
        machine = Machine(
            self.clock,
            DefectiveEntropy(entropy, self.defects),
            disk,
            SimulatedWorkers(
                self.world.loop,
                workers,
                delay_s=self.disk_delay_s,
                defects=self.defects,
                sync_jobs=self.sync_jobs,
            ),
            partial(open_sqlite, disk),
            boot_id=f"boot-{self.boot}",
        )
        self.unexpected.append(machine.unexpected)
        return machine

    def start(self, program: Program) -> Process:
        """Run a program. If an error ends the program, :meth:`World.errors` returns this error."""
        if self.running:
            raise RuntimeError(f"{self.name} runs a program already")
        if not self.up:
            self.up = True
            self.world.network.host_booted(self)
        self.life += 1
        process = self.world.loop.new_process(f"{self.name}.{self.life}", self)
        self.process = process
        context = process.context()
        machine = self.machine(process)
        process_task = context.run(
            self.world.loop.create_task, program(machine), name=f"{process.name}/main", context=context
        )
        process.main = process_task
        self.world.loop.trace(b"start " + process.name.encode())
        return process

    def kill(self) -> None:
        """SIGKILL: end the program. All bytes that the program has written are kept."""
        self._end(power_lost=False)

    def lose_power(self) -> None:
        """Cut the power of the machine. Unsynced writes may be lost, and peers are not notified."""
        self._end(power_lost=True)
        self.up = False
        self.boot += 1
        self.disk.crash()

    def _end(self, *, power_lost: bool) -> None:
        process = self.process
        if process is None or not process.alive:
            return
        self.world.loop.trace(b"end " + process.name.encode())
        self.world.loop.kill(process)
        self.world.network.process_killed(process, power_lost=power_lost)

    def pause(self) -> None:
        """Stop the program for a while, as SIGSTOP does. It keeps its memory and its connections."""
        if self.process is not None:
            self.world.loop.pause(self.process)

    def resume(self) -> None:
        """Let the program continue after :meth:`pause`, as SIGCONT does."""
        if self.process is not None:
            self.world.loop.resume(self.process)

    def __repr__(self) -> str:
        return f"<Host {self.name}>"
