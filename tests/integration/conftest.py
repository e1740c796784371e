"""Fixtures for tests with real clients.

If a client of another language is missing, its tests are skipped with a reason. With CI=true they fail
instead. ``tools/fetch_clients.py`` fetches the clients that no package manager of the system has.
"""

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from foreign_clients import JARS, JAVASCRIPT_PACKAGES, METADATA_SHELL, Java, JavaScript, Kcat, require

from moldau.testing import Node


@pytest.fixture(scope="module", params=["classic", "diskless"])
def kind(request: pytest.FixtureRequest) -> str:
    """The default kind of topics. A test that needs a certain kind sets it with ``parametrize``."""
    return str(request.param)


@pytest.fixture(scope="module")
def node(kind: str) -> Iterator[Node]:
    """A node that the tests of a file share. Each test uses its own topics and groups."""
    with Node(diskless=kind == "diskless") as running:
        yield running


@pytest.fixture
def bootstrap(node: Node) -> str:
    """``HOST:PORT`` of the shared node."""
    return node.bootstrap_servers


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses. The topic is not created."""
    return f"topic-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    """A group id that no other test uses."""
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def java() -> Java:
    """Runs Kafka's tools and small Java sources against Kafka's own jars."""
    program = shutil.which("java")
    require(program is not None and JARS.is_dir(), "java, or Kafka's jars in .tools/jars,")
    return Java(program or "")


@pytest.fixture(scope="session")
def java_with_metadata_shell(java: Java) -> Java:
    """Runs programs like :func:`java`. They can also use the jars of Kafka's metadata shell."""
    require(METADATA_SHELL.is_dir(), "Kafka's metadata shell in .tools/shell")
    return java


@pytest.fixture(scope="session")
def javascript() -> JavaScript:
    """Runs the scripts in ``javascript/``."""
    program = shutil.which("node")
    require(program is not None and JAVASCRIPT_PACKAGES.is_dir(), "node, or npm's packages in .tools/node,")
    return JavaScript(program or "")


@pytest.fixture(scope="session")
def kcat() -> Kcat:
    """Runs kcat."""
    program = shutil.which("kcat")
    require(program is not None, "kcat")
    return Kcat(program or "")


@pytest.fixture(scope="session")
def kafka_python_tests() -> Path:
    """The folder that contains kafka-python's own package ``test``."""
    folder = JARS.parent / "kafka-python"
    require((folder / "test").is_dir(), "kafka-python's test suite in .tools/kafka-python")
    return folder
