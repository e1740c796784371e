"""Fixtures and rules for all tests: Hypothesis checks behaviour, never time; tests that share a process; one
S3 server.
"""

import ast
import functools
import pathlib
import random
import socket
import subprocess
import sys
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
"""Files whose tests share one Spark session, a JVM that takes long to start."""
ALONE = ("tests/simulation/", "tests/integration/clients/test_kafka_python_suite.py")
"""Tests that share nothing and take long."""
COMPUTING = "tests/simulation/"
"""Tests that never wait, neither for a client nor for a disk."""
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
"""Files and groups that take longest. They begin in this order, so that none is left at the end; those with a
JVM of Spark are apart, because each needs a core."""


class ByWhatTestsShare(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Assigns tests to processes: the tests of one file share a node, and so a process.

    One process begins with the simulations, and the others with what takes longest. So the tests that wait
    leave a core for those that compute, and at the end only short ones are left.
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
    """The scope's place in the order in which scopes begin; those that take shorter have one place."""
    return next((place for place, long in enumerate(LONG) if scope.startswith(long)), len(LONG))


REAL_TIME = ("aiokafka", "confluent_kafka", "kafka", "moldau.testing", "pyspark", "socket", "subprocess")
"""Imports of tests with real nodes, processes and clients, whose outcome may depend on the machine's
speed."""
PURE = ("aiokafka.record", "kafka.record")
"""Files among these that only compute."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--failures-to", help="write a line for each failed test: real_time or deterministic, and its id"
    )


@pytest.hookimpl(tryfirst=True)  # runs before -m selects tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that run in real time; all others are deterministic."""
    for item in items:
        if "simulation" not in item.path.parts and runs_in_real_time(item.path):
            item.add_marker("real_time")


@functools.cache
def runs_in_real_time(file: pathlib.Path) -> bool:
    """Whether a test file, or a helper of its room that it uses, imports one of :data:`REAL_TIME`."""
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
    """Tests create records with old timestamps, which the first round of retention would delete.

    The first round runs half a minute after a node has started, which on a slow machine is in the middle of a
    test. Therefore retention is disabled, except on nodes that set ``log.retention.check.interval.ms``
    themselves.
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
    """Returns a port that stays free until the test listens on it, also between two lives of a node.

    A port that the system chose for a socket may be assigned to another program when the socket is
    closed. These ports are assigned only to programs that request one by its number.
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
    """A real S3 server on loopback, in a process of its own."""
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


@pytest.fixture
def s3_bucket(s3_endpoint: str) -> str:
    """A bucket for this test only."""
    name = f"moldau-{uuid.uuid4().hex}"
    request = urllib.request.Request(f"{s3_endpoint}/{name}", method="PUT", data=b"")
    with urllib.request.urlopen(request) as response:
        assert response.status == 200
    return name
