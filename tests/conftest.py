"""Fixtures and rules for all tests. Hypothesis has no time limits. Tests that share a node run in one
process. All tests share one S3 server."""

import ast
import functools
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from moldau.config import BrokerConfig

settings.register_profile(
    "moldau", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("moldau")

TESTS = pathlib.Path(__file__).parent
DAY_MS = str(24 * 3_600_000)
LATE = (
    "log.initial.task.delay.ms",
    "log.retention.check.interval.ms",
    "producer.id.expiration.check.interval.ms",
)

ON_SPARK = ("test_on_spark.py", "test_source_on_spark.py", "test_notebook.py", "test_iceberg_on_spark.py")
"""Files whose tests share one Spark session, because the JVM of a session takes long to start."""
ALONE = ("tests/simulation/", "tests/integration/clients/test_kafka_python_suite.py")
"""Tests that take long, and do not share a node or a session with other tests."""
COMPUTING = "tests/simulation/"
"""Tests that only compute. They do not wait for a client or a disk."""
LONG = (
    "on Spark",
    "tests/docs/test_examples.py",
    "tests/cli/serving/test_cli_starting.py",
    "tests/integration/processes/",
    "tests/integration/test_demo.py",
    "tests/integration/clients/test_kafka_python_suite.py",
    "tests/pipeline/spark/test_spark_cluster.py",
    "tests/server/controllers/test_controller_quorum.py",
    "tests/integration/test_",
    "tests/server/tiered/test_foreign_managers.py",
    "tests/integration/clients/test_java",
    "tests/server/limits/test_amplification.py",
    "tests/cli/serving/test_cli_cluster.py",
)
"""Files and groups of tests that take longest. They begin in the order of this list and before all other
tests, so that no long test is left at the end. Files that need a JVM of Spark are far apart in the list,
because each of them needs a core."""


class ByWhatTestsShare(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Assigns tests to processes. The tests of one file share a node, so they run in one process.

    One process begins with the simulations. The other processes begin with the tests that take longest. So
    tests that wait run beside tests that compute, and only short tests are left at the end.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(ALONE):
            return nodeid
        file = nodeid.partition("::")[0]
        return "on Spark" if file.endswith(ON_SPARK) else file

    def _assign_work_unit(self, node: Any) -> None:
        computes = node is self.nodes[0]
        first = min(
            self.workqueue, key=lambda scope: (scope.startswith(COMPUTING) != computes, place_of(scope))
        )
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByWhatTestsShare:
    """Distribute tests over the processes of ``make test``."""
    return ByWhatTestsShare(config, log)


@functools.cache
def place_of(scope: str) -> int:
    """The position of a scope in the order in which scopes begin. All scopes that are not in ``LONG`` have
    the last position."""
    return next((place for place, long in enumerate(LONG) if scope.startswith(long)), len(LONG))


REAL_TIME = ("aiokafka", "confluent_kafka", "kafka", "moldau.testing", "pyspark", "socket", "subprocess")
"""Packages that are imported by tests with real nodes, processes and clients. The outcome of such tests may
depend on the speed of the machine."""
PURE = ("aiokafka.record", "kafka.record")
"""Parts of the packages in ``REAL_TIME`` that only compute. A test that imports only these parts is
deterministic."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--failures-to", help="write a line for each failed test: real_time or deterministic, and its id"
    )


@pytest.hookimpl(tryfirst=True)  # this hook runs before the option -m selects tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that run in real time. All other tests are deterministic."""
    for item in items:
        if "simulation" not in item.path.parts and runs_in_real_time(item.path):
            item.add_marker("real_time")


@functools.cache
def runs_in_real_time(file: pathlib.Path) -> bool:
    """Whether a test file imports one of :data:`REAL_TIME`, directly or through a helper in its folder."""
    seen, waiting = {file}, [file]
    folders = [folder for folder in file.parents if TESTS in folder.parents]
    while waiting:
        names = imported_names(waiting.pop())
        if any(is_part_of(name, REAL_TIME) and not is_part_of(name, PURE) for name in names):
            return True
        modules = {name.partition(".")[0] for name in names} | {"conftest"}
        helpers = {folder / f"{module}.py" for folder in folders for module in modules} - seen
        waiting += [helper for helper in helpers if helper.exists()]
        seen |= helpers
    return False


@functools.cache
def imported_names(file: pathlib.Path) -> frozenset[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def is_part_of(name: str, packages: tuple[str, ...]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the failures to the file that ``--failures-to`` names."""
    path = terminalreporter.config.getoption("--failures-to")
    if path is None:
        return
    failed = {
        report.nodeid: "real_time" if "real_time" in getattr(report, "keywords", ()) else "deterministic"
        for outcome in ("failed", "error")
        for report in terminalreporter.stats.get(outcome, ())
    }
    pathlib.Path(path).write_text("".join(f"{kind} {test}\n" for test, kind in failed.items()))


@pytest.fixture(scope="session", autouse=True)
def _records_of_any_age_stay() -> Iterator[None]:
    """Switch retention off, because tests create records with old timestamps, which the first round of
    retention would delete.

    The first round begins half a minute after a node has started. On a slow machine, this is in the middle of
    a test. Nodes that set ``log.retention.check.interval.ms`` themselves keep retention.
    """
    import moldau.testing.node
    from moldau.server.settings import development_config

    def patient(
        data: str, port: int, properties: Mapping[str, str], *, diskless: bool = False
    ) -> BrokerConfig:
        late = dict.fromkeys(LATE, DAY_MS)
        return development_config(data, port, {**late, **properties}, diskless=diskless)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moldau.testing.node, "development_config", patient)
        yield


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """A function that returns a free port. The port stays free until the test listens on it, and also while a
    node is stopped between two starts.

    If the operating system chooses a port, it can give the same port to another program as soon as the port
    is not in use. The system never chooses the ports of this fixture. So only a program that requests such a
    port by its number can use it.
    """
    chance = random.SystemRandom()

    def choose() -> int:
        while True:
            port = chance.randrange(15_000, 32_000)
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
            return port

    return choose


_SERVER = """
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()  # until the tests' process closes the pipe or is gone
"""


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A real S3 server on loopback. It runs in a separate process."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()


S3PROXY = pathlib.Path(__file__).parents[1] / ".tools" / "s3proxy"
S3_KEYS = {"access.key.id": "key", "secret.access.key": "secret"}


@pytest.fixture(scope="session")
def s3proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, pathlib.Path]]:
    """S3Proxy on loopback, in a separate process. It checks signatures. Yields the address of S3Proxy and its
    folder. Each folder in this folder is a bucket."""
    java, jars = shutil.which("java"), list(S3PROXY.glob("*.jar"))
    if java is None or not jars:
        if os.environ.get("CI") == "true":
            pytest.fail("java or S3Proxy is missing, and CI=true allows no skips")
        pytest.skip("java or S3Proxy is missing (tools/fetch_clients.py fetches S3Proxy)")
    folder = tmp_path_factory.mktemp("s3proxy")
    (folder / "buckets").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{probe.getsockname()[1]}"
    lines = {
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.endpoint": endpoint,
        "s3proxy.identity": S3_KEYS["access.key.id"],
        "s3proxy.credential": S3_KEYS["secret.access.key"],
        "s3proxy.ignore-unknown-headers": "true",
        "jclouds.provider": "filesystem-nio2",
        "jclouds.identity": "unused",
        "jclouds.credential": "unused",
        "jclouds.filesystem.basedir": str(folder / "buckets"),
    }
    config = folder / "s3proxy.conf"
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-jar", str(jars[0]), "--properties", str(config)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_until_served(process, endpoint.removeprefix("http://"), folder / "log")
        yield endpoint, folder / "buckets"
    finally:
        process.terminate()
        process.wait(timeout=30)


VERSITYGW = pathlib.Path(__file__).parents[1] / ".tools" / "versitygw" / "versitygw"


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Versity S3 Gateway on loopback, in a separate process. It keeps versions. Yields its address."""
    if not VERSITYGW.exists():
        if os.environ.get("CI") == "true" and shutil.which("go") is not None:
            pytest.fail("versitygw is missing, and CI=true allows no skips where Go is installed")
        pytest.skip("versitygw is missing (tools/fetch_clients.py builds it if Go is installed)")
    folder = tmp_path_factory.mktemp("versitygw")
    for name in ("buckets", "versions", "metadata"):
        (folder / name).mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    # The metadata are files, because not every file system has extended attributes.
    storage = [
        "--versioning-dir",
        f"{folder}/versions",
        "--sidecar",
        f"{folder}/metadata",
        f"{folder}/buckets",
    ]
    command = [str(VERSITYGW), "--port", address, "--keep-alive", "--quiet", "posix", *storage]
    keys = {"ROOT_ACCESS_KEY": S3_KEYS["access.key.id"], "ROOT_SECRET_KEY": S3_KEYS["secret.access.key"]}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=os.environ | keys, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_until_served(process, address, folder / "log")
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_until_served(process: subprocess.Popen[bytes], address: str, log: pathlib.Path) -> None:
    host, _, port = address.partition(":")
    deadline = time.monotonic() + 60
    while not _is_served(host, int(port)):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, "the S3 server does not start"
        time.sleep(0.1)


@pytest.fixture
def versitygw_bucket(versitygw: str) -> str:
    """A bucket of Versity S3 Gateway for this test only. It keeps versions."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=versitygw,
        region_name="us-east-1",
        aws_access_key_id=S3_KEYS["access.key.id"],
        aws_secret_access_key=S3_KEYS["secret.access.key"],
    )
    name = f"moldau-{uuid.uuid4().hex}"
    client.create_bucket(Bucket=name)
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return name


def _is_served(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


@pytest.fixture
def s3proxy_bucket(s3proxy: tuple[str, pathlib.Path]) -> str:
    """A bucket of S3Proxy for this test only."""
    name = f"moldau-{uuid.uuid4().hex}"
    (s3proxy[1] / name).mkdir()
    return name


@pytest.fixture
def s3_bucket(s3_endpoint: str) -> str:
    """A bucket for this test only."""
    name = f"moldau-{uuid.uuid4().hex}"
    request = urllib.request.Request(f"{s3_endpoint}/{name}", method="PUT", data=b"")
    with urllib.request.urlopen(request) as response:
        assert response.status == 200
    return name


@pytest.fixture
def s3_versioned_bucket(s3_endpoint: str, s3_bucket: str) -> str:
    """A bucket for this test only. It keeps versions, so a deletion only adds a marker."""
    body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    headers = {"Content-Type": "application/xml"}
    request = urllib.request.Request(f"{s3_endpoint}/{s3_bucket}?versioning", body, headers, method="PUT")
    with urllib.request.urlopen(request) as response:
        assert response.status == 200
    return s3_bucket
