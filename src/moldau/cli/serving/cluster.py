"""``moldau dev --brokers``: a cluster of processes. One command starts the cluster, and one signal stops
it."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moldau.cli.errors import CommandError, one_line
from moldau.cli.serving.cluster_folder import ClusterFolder
from moldau.cluster.folders.formatter import FormatRequest, format_storage, new_cluster_id
from moldau.cluster.folders.meta_properties import FormatError
from moldau.config.broker import BrokerConfig
from moldau.config.definition import ConfigError
from moldau.runtime.clock import SystemClock
from moldau.runtime.entropy import SystemEntropy
from moldau.runtime.files.disk import DiskError
from moldau.runtime.files.local_disk import LocalDisk
from moldau.runtime.garbage_collection import keep_imported
from moldau.server.development_cluster import (
    BROKER,
    CONTROLLER,
    OWN_KEYS,
    ClusterNode,
    free_ports,
    plan_nodes,
    properties_of,
)
from moldau.server.settings import check_supported

STOP_TIMEOUT_S: Final = 30.0
"""Time in seconds after which a node that does not stop is killed. A node that stops cleanly first hands its
leaderships over, and ends at most 9 s later."""
_LOG_TAIL_BYTES: Final = 4_096
_ERROR: Final = "moldau: "


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The options of ``moldau dev`` for a cluster. ``port`` is the first broker's port, or 0."""

    brokers: int
    controllers: int
    racks: Sequence[str]
    host: str
    port: int
    properties: Mapping[str, str]
    log_level: str
    is_restored: bool = False
    """Whether the folder is new and the saved cluster in the object store is restored into it."""


def run_cluster(folder: Path, options: ClusterOptions) -> None:
    """Run until SIGTERM or SIGINT. Raises :class:`CommandError` when a node does not start or stop."""
    keep_imported()
    for key in OWN_KEYS:
        if key in options.properties:
            raise CommandError(
                f"--set {key} cannot be used with --brokers or --controllers: each node has its own"
            )
    try:
        with contextlib.closing(LocalDisk().lock(f"{folder}/.lock")):
            processes = _ClusterProcesses(folder, options)
            processes.prepare()
            asyncio.run(processes.run())
    except DiskError as error:
        raise CommandError(f"{folder} is in use by another process (it holds .lock)") from error


class _ClusterProcesses:
    """The processes of a cluster, from their start to their end."""

    def __init__(self, path: Path, options: ClusterOptions) -> None:
        self._folder = ClusterFolder(path)
        self._options = options
        self._nodes: list[ClusterNode] = []
        self._cluster_id = ""
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    async def run(self) -> None:
        """Start all nodes, print the addresses, and wait for a signal or for the end of the last node."""
        stop_wanted = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop_wanted.set)
        waiting = asyncio.ensure_future(stop_wanted.wait())
        try:
            starting = asyncio.ensure_future(self._start())
            await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await self._serve(waiting)
            else:
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
        finally:
            waiting.cancel()
            await self._stop()

    def prepare(self) -> None:
        """Format the folders and write the properties of all nodes. Blocking."""
        options, entropy = self._options, SystemEntropy()
        known = self._folder.known()
        if known is not None:
            if options.is_restored:
                raise CommandError(
                    f"{self._folder.path} holds a cluster already: --restore-from needs a new folder. To"
                    " start the restored cluster again, leave it out"
                )
            self._folder.check_counts(known, options.brokers, options.controllers)
        self._cluster_id = new_cluster_id(entropy) if known is None else known.cluster_id
        try:
            ports = free_ports(entropy, options.host, options.brokers + options.controllers)
        except OSError as error:
            raise CommandError(f"cannot listen on {options.host}: {one_line(error)}") from error
        broker_ports = ports[: options.brokers]
        if options.port:
            broker_ports = list(range(options.port, options.port + options.brokers))
        self._nodes = plan_nodes(
            str(self._folder.path), options.host, broker_ports, ports[options.brokers :], options.racks
        )
        try:
            configs = {node: self._config_of(node) for node in self._nodes}
            if options.is_restored:
                self._cluster_id = _restored(list(configs.values()))
            # From now on the folder belongs to a cluster, even if a node does not start.
            self._folder.write(self._cluster_id, self._nodes, {})
            for node, config in configs.items():
                self._prepare_node(node, config)
        except (ConfigError, FormatError) as error:
            raise CommandError(one_line(error)) from error

    def _config_of(self, node: ClusterNode) -> BrokerConfig:
        config = BrokerConfig.from_properties(properties_of(node, self._nodes, self._options.properties))
        check_supported(config)
        return config

    def _prepare_node(self, node: ClusterNode, config: BrokerConfig) -> None:
        request = FormatRequest(
            cluster_id=self._cluster_id,
            node_id=config.node_id,
            log_dirs=config.log_dirs,
            metadata_dir=config.metadata_log_dir,
            ignore_formatted=True,
        )
        format_storage(LocalDisk(), SystemEntropy(), request, SystemClock().now_ms())
        self._folder.write_config(node, properties_of(node, self._nodes, self._options.properties))

    async def _start(self) -> None:
        for node in self._nodes:
            await self._spawn(node)
        self._write()
        await asyncio.gather(*map(self._ready, self._nodes))
        brokers = (f"{node.host}:{node.port}" for node in self._nodes if node.role == BROKER)
        print(f"ready {','.join(brokers)}", flush=True)

    async def _spawn(self, node: ClusterNode) -> None:
        command = [sys.executable, "-m", "moldau", "node", "--config", str(self._folder.config_of(node))]
        command += ["--log-level", self._options.log_level, "--stop-with-parent"]
        with self._folder.log_of(node).open("ab") as log:
            self._processes[node.node_id] = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # Ctrl-C on a terminal must reach only this process, which stops the other processes in order.
                start_new_session=True,
            )

    async def _ready(self, node: ClusterNode) -> None:
        process = self._processes[node.node_id]
        assert process.stdout is not None
        if not await process.stdout.readline():
            await process.wait()
            raise CommandError(f"{_named(node)} did not start: {self._last_words(node)}")

    async def _serve(self, stop_wanted: "asyncio.Future[Any]") -> None:
        """Report each node that ends unexpectedly. Returns when a signal arrives. Raises
        :class:`CommandError` when no node runs any more."""
        ends: dict[asyncio.Future[Any], ClusterNode] = {
            asyncio.ensure_future(self._processes[node.node_id].wait()): node for node in self._nodes
        }
        while ends and not stop_wanted.done():
            done, _ = await asyncio.wait((*ends, stop_wanted), return_when=asyncio.FIRST_COMPLETED)
            ended = [ends.pop(each) for each in list(ends) if each in done]
            for node in ended:
                self._report(node)
            if ended:
                self._write()
        for each in ends:
            each.cancel()
        if not ends:
            raise CommandError("no node of the cluster is left")

    def _report(self, node: ClusterNode) -> None:
        process = self._processes[node.node_id]
        advice = f"`moldau node --config {self._folder.config_of(node)}` starts it again"
        print(
            f"{_ERROR}{_named(node)} (pid {process.pid}) {self._end_of(node, process)}; {advice}",
            file=sys.stderr,
            flush=True,
        )

    def _end_of(self, node: ClusterNode, process: asyncio.subprocess.Process) -> str:
        code = process.returncode
        if code is not None and code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        if code == 0:
            return "has stopped"
        return f"has failed: {self._last_words(node)}"

    def _last_words(self, node: ClusterNode) -> str:
        """The error with which the node ended, or the name of its log file."""
        path = self._folder.log_of(node)
        lines = path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").splitlines()
        if lines and lines[-1].startswith(_ERROR):
            return lines[-1].removeprefix(_ERROR)
        return f"see {path}"

    async def _stop(self) -> None:
        """Stop the brokers, which hand over leaderships, and then the controllers."""
        problems = []
        for role in (BROKER, CONTROLLER):
            group = [node for node in self._nodes if node.role == role and self._running(node) is not None]
            for problem in await asyncio.gather(*map(self._end, group)):
                problems += [] if problem is None else [problem]
        if self._nodes:
            self._write()
        if problems and sys.exception() is None:
            raise CommandError("; ".join(problems))

    async def _end(self, node: ClusterNode) -> str | None:
        """Stop a node cleanly. Returns the error, if there is one."""
        process = self._processes[node.node_id]
        process.terminate()
        try:
            code = await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"{_named(node)} did not stop within {STOP_TIMEOUT_S:.0f} s and was killed"
        # If a process has not installed its signal handlers yet, SIGTERM ends it with the code -SIGTERM. This
        # is not an error.
        return None if code in (0, -signal.SIGTERM) else f"{_named(node)} {self._end_of(node, process)}"

    def _running(self, node: ClusterNode) -> asyncio.subprocess.Process | None:
        process = self._processes.get(node.node_id)
        return None if process is None or process.returncode is not None else process

    def _write(self) -> None:
        running = {node.node_id: self._running(node) for node in self._nodes}
        pids = {node_id: None if each is None else each.pid for node_id, each in running.items()}
        self._folder.write(self._cluster_id, self._nodes, pids)


def _restored(configs: list[BrokerConfig]) -> str:
    """Restore the saved cluster into the folders of its new nodes. Returns its id."""
    from moldau.cli.storage.backup import restored_at_start  # Only a restore needs this module.

    return restored_at_start(configs).cut.cluster_id


def _named(node: ClusterNode) -> str:
    return f"{node.role} {node.node_id}"
