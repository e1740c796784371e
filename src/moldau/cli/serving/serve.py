"""Runs a node until a signal stops it."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from moldau.cli.errors import CommandError, one_line
from moldau.cli.serving import logs
from moldau.cluster.folders.meta_properties import FormatError
from moldau.config.broker import BrokerConfig
from moldau.config.definition import ConfigError
from moldau.config.properties import parse_properties
from moldau.runtime.errors import KafkaError
from moldau.runtime.files.descriptor_shares import lack_of_open_files
from moldau.runtime.garbage_collection import collect_rarely, keep_collections_short, keep_imported
from moldau.runtime.machine import Machine
from moldau.server.identity import Address
from moldau.server.node import ServerNode
from moldau.server.subsystems.broker_registration import CONTROLLED_SHUTDOWN_TIMEOUT_MS, RegistrationSubsystem
from moldau.server.subsystems.diskless.first_start import refuse_foreign_store
from moldau.storage.folders.log_directory import LogDirectoryError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Beside: TypeAlias = Callable[[Address], AbstractAsyncContextManager[None]]
"""Creates the work that runs while the node is ready. Its argument is the node's address."""

STOP_TIMEOUT_S: Final = 9.0
"""Time limit, in seconds, of a clean stop after leaderships are handed over. The stop usually takes less
time, but closing thousands of logs may take longer. After this time the process ends, and the next start
recovers the logs."""
PARENT_CHECK_INTERVAL_S: Final = 1.0


def read_config(path: Path, overrides: Mapping[str, str]) -> BrokerConfig:
    """A node's properties file with the given changes. Raises ``ConfigError``, :class:`CommandError`."""
    try:
        text = path.read_text()
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"cannot read {path}: it is not UTF-8 text") from error
    return BrokerConfig.from_properties(parse_properties(text), overrides)


def run_node(
    config_of: Callable[[], BrokerConfig],
    log_level: str,
    *,
    format_new: bool = False,
    beside: Beside | None = None,
    stop_with_parent: bool = False,
) -> None:
    """Run the node until SIGTERM or SIGINT, with the additional work.

    With ``stop_with_parent`` the node also stops when the process that started it has ended. Raises
    :class:`CommandError` when the node cannot start or fails later.
    """
    try:
        config = config_of()
    except ConfigError as error:
        raise CommandError(one_line(error)) from error
    logs.configure(log_level)
    machine = Machine.real()
    reason = lack_of_open_files()
    if reason is not None:
        raise CommandError(reason)
    run_on_loop(_check_and_serve(config, machine, format_new, beside, stop_with_parent))


async def _check_and_serve(
    config: BrokerConfig, machine: Machine, format_new: bool, beside: Beside | None, stop_with_parent: bool
) -> None:
    try:
        await refuse_foreign_store(config, machine)
    except KafkaError as error:
        raise CommandError(one_line(error)) from error
    await _serve(ServerNode(config, machine, format_new=format_new), beside, stop_with_parent)


def run_on_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop if it is installed. Enables garbage collection, which :mod:`moldau.cli.main` disabled."""
    keep_imported()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def _serve(node: ServerNode, beside: Beside | None, stop_with_parent: bool) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    stop_wanted = loop.create_task(ended.wait())
    if stop_with_parent:
        _watch_parent(os.getppid(), ended)
    # Garbage collections are kept short already during the start. With many partitions, the start would
    # otherwise spend most of its time on garbage collection of the objects that it loads.
    collecting = loop.create_task(keep_collections_short())
    try:
        address = await _started(node, stop_wanted)
        if address is None:
            return
        async with contextlib.nullcontext() if beside is None else beside(address):
            failed = loop.create_task(node.failed())
            await asyncio.wait((stop_wanted, failed), return_when=asyncio.FIRST_COMPLETED)
            reason = failed.result() if failed.done() else None
            failed.cancel()
        await _stop(node)
        if reason is not None:
            raise CommandError(reason)
    finally:
        collecting.cancel()
        stop_wanted.cancel()


def _watch_parent(parent: int, ended: asyncio.Event) -> None:
    """Set ``ended`` when the parent of this process is no longer ``parent``. The process ``parent`` was then
    killed, so it cannot stop this process."""
    if os.getppid() == parent:
        loop = asyncio.get_running_loop()
        loop.call_later(PARENT_CHECK_INTERVAL_S, _watch_parent, parent, ended)
    else:
        ended.set()


async def _started(node: ServerNode, stop_wanted: "asyncio.Task[Any]") -> Address | None:
    """Start the node and print that it is ready. If a signal arrives before that, stop everything again and
    return ``None``."""
    starting = asyncio.get_running_loop().create_task(node.start())
    await asyncio.wait((starting, stop_wanted), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await starting
        await _stop(node)
        return None
    try:
        address = starting.result()
    except Exception as error:
        # The operator gets one line for an error. The stack trace is logged only at the level DEBUG.
        logger.debug("the start failed", exc_info=True)
        raise CommandError(_problem(error)) from error
    collect_rarely()
    print(f"ready {address}", flush=True)
    return address


def _problem(error: Exception) -> str:
    if isinstance(error, FormatError | ConfigError | LogDirectoryError | KafkaError | OSError):
        return one_line(error)
    return f"the node cannot start: {type(error).__name__}: {one_line(error)}"


async def _stop(node: ServerNode) -> None:
    """Stop the node. The hand-over of leaderships comes first, and has its own time limit."""
    loop = asyncio.get_running_loop()
    stopping, registration = loop.create_task(node.stop()), node.find(RegistrationSubsystem)
    if registration is not None:
        handed_over = loop.create_task(registration.handed_over.wait())
        timeout_s = STOP_TIMEOUT_S + CONTROLLED_SHUTDOWN_TIMEOUT_MS / 1000
        await asyncio.wait((stopping, handed_over), return_when=asyncio.FIRST_COMPLETED, timeout=timeout_s)
        handed_over.cancel()
    left = node.open_log_count
    while not (await asyncio.wait([stopping], timeout=STOP_TIMEOUT_S))[0]:
        before, left = left, node.open_log_count
        if left >= before:
            stopping.cancel()
            await asyncio.wait([stopping])
            raise CommandError(f"the node did not stop within {STOP_TIMEOUT_S:.0f} s")
        logger.info("the node is stopping: %d logs are still to be closed", left)
    stopping.result()
