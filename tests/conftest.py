"""What every test shares: Hypothesis judges behaviour, never time; what stays together; one S3 server."""

import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("moldau", deadline=None, print_blob=True)
settings.load_profile("moldau")

SHARED = ("spark",)
"""Fixtures that take long to start (a JVM with a Spark session): one worker runs all tests with one."""
APART = {"simulation"}
"""Folders whose tests share nothing and take long: any worker takes any of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tell the distributor which tests one worker takes: those of a file, for they share a node."""
    for item in items:
        if item.path.parent.name in APART:
            continue
        used = [name for name in SHARED if name in getattr(item, "fixturenames", ())]
        item.add_marker(pytest.mark.xdist_group(used[0] if used else item.path.stem))


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
    """A bucket that nobody else uses."""
    name = f"moldau-{uuid.uuid4().hex}"
    request = urllib.request.Request(f"{s3_endpoint}/{name}", method="PUT", data=b"")
    with urllib.request.urlopen(request) as response:
        assert response.status == 200
    return name
