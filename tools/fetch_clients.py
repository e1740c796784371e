"""Fetch the clients of other projects, which the integration tests use, into ``.tools/``.

Kafka's own jars and its metadata shell, Spark's connector, Avro's Java library and an S3 server come from
Maven. The JavaScript clients come from npm, with versions that are pinned in ``tools/clients/``.
kafka-python's test suite comes from its source distribution, in the version that is installed. A second
S3 server, which keeps versions, is built from Go modules if Go is installed. Mermaid, which draws the
diagrams of the documentation's site, comes from npm. Moldau itself does not need these clients. The exit
code is 1 if one of them is not available.
"""

import hashlib
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent / "clients"
SPARK_JAR = pathlib.Path(__file__).resolve().parent.parent / "java" / "spark"
TARGET = pathlib.Path(__file__).resolve().parent.parent / ".tools"
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
MERMAID_VERSION = "11.17.2"
MERMAID_SHA512 = (
    "57a2b70bc101744b0f1595d228c25eea9a50384371b87011afd1af1d7e21878e"
    "e501b84c443f6a7f8a042bb2e869143150b31af34feab798073bbdda0a578106"
)


def _fetch_from_maven(pom: pathlib.Path, folder: pathlib.Path) -> None:
    """Fetch the dependencies of a project file, unless the stamp in the folder shows that they were already
    fetched for this project file."""
    stamp = folder / ".complete"
    if stamp.exists() and stamp.read_text() == pom.read_text():
        return
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(
        ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"],
        check=True,
    )
    stamp.write_text(pom.read_text())


def fetch_jars() -> None:
    """Kafka's broker, clients and tools, with their dependencies, into ``.tools/jars``."""
    _fetch_from_maven(HERE / "pom.xml", TARGET / "jars")


def fetch_metadata_shell() -> None:
    """Kafka's metadata shell into ``.tools/shell``. It also needs the jars of ``.tools/jars``."""
    _fetch_from_maven(HERE / "shell" / "pom.xml", TARGET / "shell")


def fetch_streams() -> None:
    """Kafka Streams into ``.tools/streams``. It also needs the jars of ``.tools/jars``."""
    _fetch_from_maven(HERE / "streams" / "pom.xml", TARGET / "streams")


def fetch_s3_server() -> None:
    """S3Proxy, an S3 server, into ``.tools/s3proxy``."""
    _fetch_from_maven(HERE / "s3proxy" / "pom.xml", TARGET / "s3proxy")


def build_versioned_s3_server() -> None:
    """Versity S3 Gateway, an S3 server that keeps versions, into ``.tools/versitygw``. It is built from Go
    modules, and only if Go is installed."""
    go, target = shutil.which("go"), TARGET / "versitygw"
    stamp = target / ".complete"
    if go is None or (stamp.exists() and stamp.read_text() == VERSITYGW):
        return
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    subprocess.run([go, "install", VERSITYGW], env=os.environ | {"GOBIN": str(target)}, check=True)
    stamp.write_text(VERSITYGW)


def fetch_spark_connector() -> None:
    """Spark's Kafka connector into ``.tools/spark-kafka``."""
    _fetch_from_maven(HERE / "spark-kafka" / "pom.xml", TARGET / "spark-kafka")


def build_spark_jar() -> None:
    """The jar that decodes records in the JVM, into ``.tools/moldau-spark``. It is built from the sources in
    ``java/spark``."""
    sources = sorted(path for path in SPARK_JAR.rglob("*") if path.is_file() and "target" not in path.parts)
    target = TARGET / "moldau-spark"
    stamp = target / ".complete"
    content = "\n".join(path.read_text() for path in sources)
    if stamp.exists() and stamp.read_text() == content:
        return
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(
        ["mvn", "-q", "-B", "-f", str(SPARK_JAR / "pom.xml"), "package", f"-DbuildDirectory={target}"],
        check=True,
    )
    stamp.write_text(content)


def fetch_avro() -> None:
    """Avro's Java library into ``.tools/avro``."""
    _fetch_from_maven(HERE / "avro" / "pom.xml", TARGET / "avro")


def fetch_iceberg() -> None:
    """Iceberg's jar for Spark 4.0 into ``.tools/iceberg-spark``."""
    _fetch_from_maven(HERE / "iceberg-spark" / "pom.xml", TARGET / "iceberg-spark")


def fetch_node_modules() -> None:
    """The JavaScript clients into ``.tools/node``."""
    node = TARGET / "node"
    package = HERE / "package.json"
    stamp = node / ".complete"
    if stamp.exists() and stamp.read_text() == package.read_text():
        return
    shutil.rmtree(node, ignore_errors=True)
    node.mkdir(parents=True)
    shutil.copy(package, node / "package.json")
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=node, check=True)
    stamp.write_text(package.read_text())


def fetch_mermaid() -> None:
    """Mermaid's script and its license into ``.tools/mermaid``."""
    target = TARGET / "mermaid"
    stamp = target / ".complete"
    if stamp.exists() and stamp.read_text() == MERMAID_SHA512:
        return
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    subprocess.run(
        ["npm", "pack", "--silent", f"mermaid@{MERMAID_VERSION}"],
        cwd=target,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (archive,) = target.glob("*.tgz")
    found = hashlib.sha512(archive.read_bytes()).hexdigest()
    if found != MERMAID_SHA512:
        raise OSError(f"{archive.name} has the SHA-512 {found}")
    with tarfile.open(archive) as opened:
        for name in ("dist/mermaid.min.js", "LICENSE"):
            content = opened.extractfile(f"package/{name}")
            assert content is not None
            (target / pathlib.Path(name).name).write_bytes(content.read())
    archive.unlink()
    stamp.write_text(MERMAID_SHA512)


def fetch_kafka_python_tests() -> None:
    """kafka-python's own tests into ``.tools/kafka-python/test``. Its wheels do not contain these tests."""
    version = importlib.metadata.version("kafka-python")
    target = TARGET / "kafka-python"
    stamp = target / ".complete"
    service = HERE / "kafka_python_service.py"
    content = f"{version}\n{service.read_text()}"
    if stamp.exists() and stamp.read_text() == content:
        return
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    requirement = f"kafka-python=={version}"
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", "kafka-python"]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--dest", str(target), requirement], check=True
    )
    (archive,) = target.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(target, filter="data")
    archive.unlink()
    (unpacked,) = target.glob("kafka_python-*")
    (unpacked / "test").rename(target / "test")
    # If the source package were still beside the tests, it would be imported instead of the installed
    # package.
    shutil.rmtree(unpacked)
    # The distribution lacks test/__init__.py and test/service.py. Without __init__.py, Python would import
    # the package "test" of the standard library.
    (target / "test" / "__init__.py").touch()
    shutil.copy(service, target / "test" / "service.py")
    stamp.write_text(content)


def main() -> int:
    TARGET.mkdir(exist_ok=True)
    failures = 0
    fetches = (
        fetch_jars,
        fetch_metadata_shell,
        fetch_streams,
        fetch_s3_server,
        build_versioned_s3_server,
        fetch_spark_connector,
        build_spark_jar,
        fetch_avro,
        fetch_iceberg,
        fetch_node_modules,
        fetch_mermaid,
        fetch_kafka_python_tests,
    )
    for fetch in fetches:
        try:
            fetch()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{fetch.__name__}: {error}", file=sys.stderr)
            failures += 1
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
