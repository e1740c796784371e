"""``python -m moldau dev`` as a child process that is started, killed, and restarted on the same folder."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

READY_TIMEOUT_S = 200.0


class DevProcess:
    """A running node. ``bootstrap`` is the address in its ready line."""

    def __init__(self, data: Path, port: int, kind: str, options: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "moldau", "dev", "--data", str(data)]
        command += ["--classic"] if kind == "classic" else []
        self._process = subprocess.Popen(
            [*command, *options, "--port", str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # If a node never becomes ready, this timer kills the node, so that the following read ends.
        watchdog = threading.Timer(READY_TIMEOUT_S, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        self.first_line = self._process.stdout.readline()
        watchdog.cancel()
        word, _, self.bootstrap = self.first_line.strip().partition(" ")
        if word != "ready":
            self._process.kill()
            raise AssertionError(f"not ready: {self.first_line!r} {self._process.communicate()[1]}")

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    def kill(self) -> None:
        """Send SIGKILL, so that the process cannot write anything."""
        self._process.kill()
        self._process.communicate()

    def terminate(self, timeout_s: float = 40.0) -> tuple[int, str]:
        """Send SIGTERM. Returns the exit code and stderr. Fails if the node does not end in time."""
        os.kill(self._process.pid, signal.SIGTERM)
        _, shown = self._process.communicate(timeout=timeout_s)
        return self._process.returncode, shown


@contextlib.contextmanager
def dev_process(
    data: Path, port: int = 0, kind: str = "classic", options: Sequence[str] = ()
) -> Iterator[DevProcess]:
    """A node that is stopped at the end of the block."""
    process = DevProcess(data, port, kind, options)
    try:
        yield process
    finally:
        process.kill()
