"""kafka-python's own integration tests, which are run against a node.

The tests are in kafka-python's source distribution (``tools/fetch_clients.py``). Tests that fail are listed
with a reason in ``kafka_python_expected_failures.txt``. This list may only get shorter.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.testing import Node

ATTEMPTS = 5
EXPECTED_FAILURES = Path(__file__).with_name("kafka_python_expected_failures.txt")


def expected_failures(kind: str) -> set[str]:
    """The listed tests. If a reason begins with a kind of topics and a colon, the test is expected to fail
    only for this kind."""
    found = set()
    for line in EXPECTED_FAILURES.read_text().splitlines():
        name, _, reason = line.partition("#")
        of_kind, colon, _ = reason.strip().partition(":")
        if name.strip() and (not colon or of_kind == kind):
            found.add(name.strip())
    return found


def broker_like_theirs(kind: str, port: int) -> Node:
    """A node whose relevant settings are equal to those of kafka-python's own test broker, because its tests
    depend on them."""
    properties = {
        "node.id": "0",
        "controller.quorum.voters": "0@127.0.0.1:1",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "group.min.session.timeout.ms": "1000",
        "num.partitions": "4",
    }
    return Node(port=port, properties=properties, diskless=kind == "diskless")


def run_suite(folder: Path, bootstrap: str, report: Path, *options: str) -> str:
    """Run the suite to its end. Returns its output."""
    # The settings of kafka-python apply. This project's settings in pyproject.toml do not apply, and tests
    # are not shuffled.
    alone = ["--config-file", os.devnull, "--rootdir", str(folder)]
    alone += ["-p", "no:randomly", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "test/integration", "-q", "--timeout", "200", "--tb", "short"]
    command += [*alone, *options, "--junit-xml", str(report)]
    environment = {
        **os.environ,
        "KAFKA_ROOT": str(folder),
        "KAFKA_VERSION": "4.3.0",
        "KAFKA_URI": f"kafka://{bootstrap}",
        "PYTHONPATH": str(folder),
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def outcomes(report: Path) -> dict[str, bool]:
    """For each test, whether it passed. Skipped tests are not included."""
    found: dict[str, bool] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        module, *classes = case.attrib["classname"].rpartition("test.integration.")[2].split(".")
        name = "::".join([f"{module}.py", *classes, case.attrib["name"]])
        found[name] = case.find("failure") is None and case.find("error") is None
    return found


@pytest.mark.clients
@pytest.mark.timeout(1500)
def test_only_the_listed_tests_fail(
    kafka_python_tests: Path, tmp_path: Path, kind: str, free_port: Callable[[], int]
) -> None:
    report = tmp_path / "report.xml"
    with broker_like_theirs(kind, free_port()) as node:
        shown = run_suite(kafka_python_tests, node.bootstrap_servers, report)
        assert report.exists(), shown
        found = outcomes(report)
        assert len(found) > 50, shown
        for attempt in range(ATTEMPTS):
            suspects = sorted(
                {name for name, passed in found.items() if not passed} - expected_failures(kind)
            )
            if not suspects:
                break
            # Some of these tests wait only for half a second to two seconds. On a busy machine this time may
            # end before the client has sent its request. Another possible reason is that a client joins a
            # group before the client has the topic's metadata. Then the client gets no partition, and waits
            # longer than the test. A failure that the node causes occurs in each run.
            again = tmp_path / f"again-{attempt}.xml"
            names = {name.rpartition("::")[2].partition("[")[0] for name in suspects}
            chosen = ["-k", " or ".join(sorted(names))]
            shown += run_suite(kafka_python_tests, node.bootstrap_servers, again, *chosen)
            assert again.exists(), shown
            found.update({name: passed for name, passed in outcomes(again).items() if name in suspects})
    failed = {name for name, passed in found.items() if not passed}
    assert failed - expected_failures(kind) == set(), shown
    assert expected_failures(kind) - failed == set(), "these pass now: take them off the list"
