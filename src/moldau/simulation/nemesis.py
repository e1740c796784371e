"""Injects faults into a world: kills, losses of power, pauses, cut links and failing disks. The seed chooses
the faults."""

import asyncio
import errno
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from moldau.simulation.checks.answers_checks import stop_and_check
from moldau.simulation.history import History
from moldau.simulation.world.defects import DefectPlace
from moldau.simulation.world.disks.disk import DiskFault
from moldau.simulation.world.disks.lost_files import lose_databases, lose_folders
from moldau.simulation.world.host import Host, Program
from moldau.simulation.world.object_store import StoreWeather
from moldau.simulation.world.world import World

RESTART_AFTER_EXIT_S = 0.5


class Fault(Enum):
    """Kinds of faults."""

    KILL = "kill"
    POWER_LOSS = "power loss"
    PAUSE = "pause"
    CUT = "cut link"
    ONE_WAY = "one-way link"
    OVERTAKE = "overtaken connections"
    RESET = "reset connections"
    DISK_ERROR = "disk error"
    DISK_FULL = "disk full"
    CLOCK_JUMP = "clock jump"
    STORE_DOWN = "object store down"
    STORE_POOR = "object store poor"
    CACHE_LOST = "cache lost"
    DATABASES_LOST = "databases lost"
    DEFECTS = "defects"
    STOP = "stop"
    """The program is stopped cleanly, as by SIGTERM."""


@dataclass(frozen=True, slots=True)
class Weather:
    """The kinds of faults that may occur. A kind with several entries is more likely."""

    faults: tuple[Fault, ...] = (Fault.KILL, Fault.PAUSE, Fault.CUT, Fault.RESET)
    pause_s_max: float = 3.0
    between_s_max: float = 4.0
    store_s_max: float = 15.0
    """Maximum duration of a failure of the store. Such a failure may last longer than a producer waits."""
    clock_skew_ms: int = 0
    """If this is set, a clock jumps forward by this time, back by this time, or to the correct time."""
    cached_topics: tuple[str, ...] = ()
    """Topics whose local folders are only a cache, so that the folders may be lost."""
    reboot_after_disk_error: bool = True
    """Whether the machine is rebooted after a failed sync. Without a reboot, a restarted program may read
    bytes from the page cache that never reached the disk because the sync failed. A later loss of power
    removes these bytes. Therefore bytes that a program has read after a restart are not necessarily durable.
    """


class Nemesis:
    """Breaks hosts and links. It also restarts programs, like an operator's supervisor."""

    def __init__(
        self,
        world: World,
        history: History,
        chance: random.Random,
        programs: dict[Host, Program],
        weather: Weather,
    ) -> None:
        self._world = world
        self._history = history
        self._chance = chance
        self._programs = programs
        self._weather = weather
        self._down: set[str] = set()
        self._bad_disks: set[str] = set()
        """Hosts with a bad disk. It is no violation if their program ends by itself before the operator
        repairs the disk."""
        self._to_reboot: set[str] = set()

    async def storm(self, fault_count: int) -> None:
        """Inject ``fault_count`` faults, one after another. Each fault except a jump of a clock ends after
        some time. At the end, no fault is in effect except wrong clocks."""
        for _ in range(fault_count):
            await asyncio.sleep(self._chance.uniform(0.01, self._weather.between_s_max))
            host = self._chance.choice(list(self._programs))
            await self._strike(self._chance.choice(self._weather.faults), host)
        self.calm()

    def calm(self) -> None:
        """End every fault that is in effect, except wrong clocks."""
        self._world.network.heal_all()
        for host in self._programs:
            host.disk.faults.clear()
            host.disk.capacity_bytes = None
            host.defects.chances.clear()
            host.resume()
        self._world.object_store.weather = StoreWeather()
        self._history.note("calm")

    async def supervise(self, restart_allowed: Callable[[Host], bool] = lambda _host: True) -> None:
        """Restart programs that have ended without a fault. If a program ends without a reason, this is a
        violation."""
        while True:
            await asyncio.sleep(RESTART_AFTER_EXIT_S)
            for host, program in self._programs.items():
                process = host.process
                if process is None or process.main is None or host.name in self._down:
                    continue
                if process.alive and process.main.done():
                    error = None if process.main.cancelled() else process.main.exception()
                    self._history.note(f"{process.name} ended: {error!r}")
                    if not isinstance(error, OSError) and host.name not in self._bad_disks:
                        self._history.violate(f"{process.name} ended by itself: {error!r}")
                    host.kill()
                if not host.running and restart_allowed(host) and host.name not in self._to_reboot:
                    host.start(program)

    async def restart(self, host: Host, pause_s: float, *, power_lost: bool = False) -> None:
        """End a host's program, or cut its power, and restart it after a pause."""
        self._down.add(host.name)
        if power_lost:
            host.lose_power()
        else:
            host.kill()
        await asyncio.sleep(pause_s)
        host.start(self._programs[host])
        self._down.discard(host.name)

    async def stop(self, host: Host) -> None:
        """Stop a host's program cleanly. The program does not run until :meth:`start`."""
        self._down.add(host.name)
        await stop_and_check(host, self._history)

    def start(self, host: Host) -> None:
        """Start the program of a host that was stopped."""
        host.start(self._programs[host])
        self._down.discard(host.name)

    async def _strike(self, fault: Fault, host: Host) -> None:
        chance = self._chance
        pause_s = chance.uniform(0.0, self._weather.pause_s_max)
        self._history.note(f"{fault.value} at {host.name} for {pause_s:.3f} s")
        match fault:
            case Fault.KILL | Fault.POWER_LOSS:
                await self.restart(host, pause_s, power_lost=fault is Fault.POWER_LOSS)
            case Fault.STOP:
                await self.stop(host)
                await asyncio.sleep(pause_s)
                self.start(host)
            case Fault.PAUSE:
                host.pause()
                await asyncio.sleep(pause_s)
                host.resume()
            case Fault.CUT | Fault.ONE_WAY | Fault.OVERTAKE | Fault.RESET:
                await self._strike_links(fault, host, pause_s)
            case Fault.DISK_ERROR:
                self._bad_disks.add(host.name)
                if self._weather.reboot_after_disk_error:
                    self._to_reboot.add(host.name)
                operation = chance.choice(("write", "sync", "sync", "rename", "open", "sync_dir"))
                host.disk.faults.append(DiskFault(operation, errno.EIO, chance.randint(1, 3)))
                await asyncio.sleep(pause_s)
                await self._operator_comes(host, reboot=self._weather.reboot_after_disk_error)
            case Fault.DISK_FULL:
                self._bad_disks.add(host.name)
                host.disk.capacity_bytes = host.disk.volume.used_bytes() + chance.randrange(5_000)
                await asyncio.sleep(pause_s)
                host.disk.capacity_bytes = None
                await self._operator_comes(host, reboot=False)
            case Fault.CLOCK_JUMP:
                self._jump(host)
            case Fault.STORE_DOWN | Fault.STORE_POOR:
                down = fault is Fault.STORE_DOWN
                self._world.object_store.weather = StoreWeather.bad(chance, down=down)
                await asyncio.sleep(chance.uniform(0.0, self._weather.store_s_max))
                self._world.object_store.weather = StoreWeather()
            case Fault.DEFECTS:
                await self._meet_defects(host, pause_s)
            case Fault.CACHE_LOST | Fault.DATABASES_LOST:
                self._down.add(host.name)
                host.kill()
                if fault is Fault.CACHE_LOST:
                    lose_folders(host, self._weather.cached_topics)
                else:
                    lose_databases(host)
                await asyncio.sleep(pause_s)
                host.start(self._programs[host])
                self._down.discard(host.name)

    async def _strike_links(self, fault: Fault, host: Host, seconds: float) -> None:
        network = self._world.network
        match fault:
            case Fault.CUT | Fault.ONE_WAY:
                links = self._links(host) if fault is Fault.CUT else self._links_one_way(host)
                for link in links:
                    network.cut(*link)
                await asyncio.sleep(seconds)
                for link in links:
                    network.heal(*link)
            case Fault.OVERTAKE:
                await self._overtake(host, seconds)
            case _:
                for end in network.connections():
                    if host in (end.host, end.peer.host) and self._chance.random() < 0.5:
                        network.break_connection(end)

    async def _overtake(self, host: Host, seconds: float) -> None:
        """Delay a host's messages, then break its connections. Messages on later connections are then
        delivered first.

        A request that was repeated on a new connection arrives twice, and the older copy arrives last.
        """
        network = self._world.network
        others = [other for other in network.hosts if other != host.name]
        for other in others:
            network.delay(host.name, other, self._chance.uniform(0.0, seconds))
        await asyncio.sleep(self._chance.uniform(0.0, seconds))
        for other in others:
            network.delay(host.name, other, 0.0)
        for end in network.connections():
            for side in (end, end.peer):
                if side.host is host and side.peer.host is not host and not side.lost:
                    network.tear(side)

    def _jump(self, host: Host) -> None:
        skew_ms = self._weather.clock_skew_ms
        if skew_ms:
            host.clock.skew_ms = self._chance.choice((-skew_ms, 0, skew_ms))
        else:
            host.clock.jump(self._chance.randint(-60_000, 60_000))

    async def _meet_defects(self, host: Host, seconds: float) -> None:
        chance = self._chance
        places = chance.sample(list(DefectPlace), chance.randint(1, len(DefectPlace)))
        host.defects.chances = {place: chance.choice((0.05, 0.3, 1.0)) for place in places}
        await asyncio.sleep(seconds)
        host.defects.chances = {}

    async def _operator_comes(self, host: Host, *, reboot: bool) -> None:
        """Repair a disk and restart the program, because a log dir that went offline stays offline until a
        restart."""
        host.disk.faults.clear()
        self._down.add(host.name)
        if reboot:
            host.lose_power()
        else:
            host.kill()
        self._bad_disks.discard(host.name)
        self._to_reboot.discard(host.name)
        await asyncio.sleep(0.1)
        host.start(self._programs[host])
        self._down.discard(host.name)

    def _links_one_way(self, host: Host) -> list[tuple[str, str]]:
        """Return the links in one direction as pairs of sender and receiver. They are either all links from
        ``host``, or all links to ``host``."""
        others = [name for name in self._world.network.hosts if name != host.name]
        is_mute = self._chance.random() < 0.5
        return [(host.name, other) if is_mute else (other, host.name) for other in others]

    def _links(self, host: Host) -> list[tuple[str, str]]:
        others = [name for name in self._world.network.hosts if name != host.name]
        chosen = self._chance.sample(others, self._chance.randint(1, len(others)))
        links: list[tuple[str, str]] = []
        for other in chosen:
            pair = [(host.name, other), (other, host.name)]
            links += pair if self._chance.random() < 0.7 else [self._chance.choice(pair)]
        return links
