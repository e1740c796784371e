"""Brokers that keep their records in an S3 server, and this server. All of them listen on loopback.

The server is Versity S3 Gateway. Its objects are files, and it does not keep versions of them.
"""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from bench.brokers import START_TIMEOUT_S, Broker, Usage, end, free_ports, usage_of
from bench.diskless import DisklessMoldau
from bench.measuring.measure import LoadTimeoutError, Sample, measure

SERVER: Final = pathlib.Path(".tools/versitygw/versitygw")
ACCESS_KEY, SECRET_KEY, REGION = "bench", "bench-secret", "us-east-1"
KINDS: Final = ("PUT/POST", "GET", "LIST", "DELETE", "HEAD")
RUN_LIMIT_S: Final = 60.0
"""The limit of one run. The cell of a run that needs longer has no number."""
SMALL_CACHE: Final = "diskless.cache.max.bytes=16777216"
_OPERATION: Final = re.compile(r" s3_([A-Z][a-z]+)")
_KIND_OF: Final = {"Get": "GET", "List": "LIST", "Delete": "DELETE", "Abort": "DELETE", "Head": "HEAD"}


class S3Server:
    """The S3 server's process. It accepts requests when the constructor returns. ``stop`` ends it and removes
    its data."""

    def __init__(
        self, folder: pathlib.Path, buckets: Sequence[str], *, counts_requests: bool = False
    ) -> None:
        """Each broker has a bucket of its own. With ``counts_requests``, the server writes an access log,
        which costs CPU time."""
        self.folder = folder
        self._access_log = folder / "access.log"
        for name in ("metadata", *(f"buckets/{bucket}" for bucket in buckets)):
            (folder / name).mkdir(parents=True)
        (port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{port}"
        # The metadata are files, because not every file system has extended attributes.
        storage = ["posix", "--sidecar", f"{folder}/metadata", f"{folder}/buckets"]
        counting = ["--access-log", str(self._access_log)] if counts_requests else []
        self._log = (folder / "server.log").open("w")
        self._process = subprocess.Popen(
            [SERVER.resolve(), "--port", f"127.0.0.1:{port}", "--keep-alive", "--quiet", *counting, *storage],
            env=os.environ | {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._wait_until_ready(port)

    def _wait_until_ready(self, port: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=0.2).close()
                return
            except OSError:
                time.sleep(0.05)
        self._process.kill()
        raise RuntimeError(f"the S3 server did not start: {(self.folder / 'server.log').read_text()[-2000:]}")

    @property
    def version(self) -> str:
        """The version that was built. The program itself does not know it."""
        return (SERVER.parent / ".complete").read_text().strip().rpartition("@")[2]

    def usage(self) -> Usage:
        return usage_of(self._process.pid)

    def requests(self) -> Counter[str]:
        """The number of requests since the start, by kind."""
        operations = _OPERATION.findall(self._access_log.read_text(errors="replace"))
        return Counter(_KIND_OF.get(operation, "PUT/POST") for operation in operations)

    def stop(self) -> None:
        end(self._process)
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def moldau_on_s3(
    folder: pathlib.Path, server: S3Server, bucket: str, settings: Sequence[str]
) -> DisklessMoldau:
    """A development node whose WAL objects, segments and saved logs are in the S3 server."""
    places = [
        f"{prefix}.{setting}"
        for prefix in ("diskless.storage", "rsm.config")
        for setting in (
            f"url=s3://{bucket}/cluster",
            f"endpoint={server.endpoint}",
            f"region={REGION}",
            f"access.key.id={ACCESS_KEY}",
            f"secret.access.key={SECRET_KEY}",
        )
    ]
    return DisklessMoldau(folder, (*places, *settings))


class Tansu(Broker):
    """A broker of Tansu with the storage engine ``s3``. All other settings have Tansu's defaults."""

    name = "tansu"

    def __init__(self, folder: pathlib.Path, server: S3Server, bucket: str, program: str) -> None:
        self._program = program
        self._bucket = bucket
        self._endpoint = server.endpoint
        super().__init__(folder)

    def _start(self) -> tuple[subprocess.Popen[str], str]:
        (port,) = free_ports(1)
        url = f"tcp://127.0.0.1:{port}"
        command = [self._program, "broker", "--storage-engine", f"s3://{self._bucket}/"]
        process = subprocess.Popen(
            [*command, "--listener-url", url, "--advertised-listener-url", url],
            env=os.environ
            | {
                "AWS_ENDPOINT": self._endpoint,
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
                "AWS_DEFAULT_REGION": REGION,
            },
            stdout=self._log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._wait_until_ready(process, port)
        return process, f"127.0.0.1:{port}"

    @property
    def version(self) -> str:
        printed = subprocess.run([self._program, "--version"], check=True, capture_output=True, text=True)
        return printed.stdout.split()[-1]


class OnServer:
    """A broker for :func:`measure`. It also measures the CPU time of the S3 server."""

    def __init__(self, name: str, broker: Broker, server: S3Server) -> None:
        self.name = name
        self.broker = broker
        self.server = server
        self._server_cpu_s: list[float] = []

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def usage(self) -> Usage:
        self._server_cpu_s.append(self.server.usage().cpu_s)
        return self.broker.usage()

    def run(self, load: str, **spec: Any) -> Sample | str:
        """Run a load, and add the S3 server's CPU seconds to the sample. If the load fails, the result is the
        text of the table's cell."""
        try:
            sample = measure(self, load, limit_s=RUN_LIMIT_S, **spec)
        except LoadTimeoutError:
            return f"> {RUN_LIMIT_S:.0f} s"
        except RuntimeError:
            return "failed"
        before, after = self._server_cpu_s[-2:]
        sample.detail["s3_server_cpu_s"] = after - before
        return sample


def has_s3(program: str) -> bool:
    """Whether Tansu was built with the storage engine ``s3``. Its help lists the engines."""
    printed = subprocess.run([program, "--help"], check=True, capture_output=True, text=True)
    return "dynostore" in printed.stdout
