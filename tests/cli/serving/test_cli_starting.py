"""Nodes as separate processes: their start, their stop, and their error messages."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest

import moldau.testing

TIMEOUT_S = 200


def start(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "moldau", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process):
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


@pytest.fixture
def ready(tmp_path):
    """A dev node as a process, with its address."""
    process = start("dev", "--data", str(tmp_path / "data"), "--port", "0")
    assert process.stdout is not None
    try:
        word, address = process.stdout.readline().split()
        assert word == "ready"
        yield process, address
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_node_cleanly(ready, number):
    process, _ = ready
    process.send_signal(number)
    assert finish(process) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("delay_s", [0.1, 0.4])
def test_a_signal_ends_a_node_that_is_starting(tmp_path, number, delay_s):
    process = start("dev", "--data", str(tmp_path), "--port", "0")
    # The signal may arrive at any moment. Until Python's handler is installed, the system's default action
    # for the signal applies.
    while not _python_runs(process.pid):
        time.sleep(0.01)
    time.sleep(delay_s)
    process.send_signal(number)
    code, _, err = finish(process)
    assert (code, err) == (0, "")


def test_a_signal_is_not_lost_at_any_moment():
    """If a signal handler raises in the callback of a weak reference, for instance during imports, the
    exception is lost."""
    program = """
import os, signal, sys, types, weakref
from moldau.cli.main import main

class Thing:
    pass

def gone(reference):
    os.kill(os.getpid(), signal.SIGTERM)
    sum(range(1000))

def run(arguments, prog_name):
    thing = Thing()
    reference = weakref.ref(thing, gone)
    del thing
    print("went on")

sys.modules["moldau.cli.app"] = types.SimpleNamespace(command=lambda: run)
sys.argv = ["moldau", "dev"]
sys.exit(main() or 7)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def _python_runs(pid):
    """Whether the process has a handler for SIGTERM."""
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
    except FileNotFoundError:
        pytest.skip("/proc is needed to see when a process is ready for signals")
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_acknowledged_records_survive_a_kill(tmp_path, cli):
    data = str(tmp_path / "data")
    for round_ in range(2):
        process = start("dev", "--data", data, "--port", "0")
        assert process.stdout is not None
        address = process.stdout.readline().split()[1]
        lines = f"{round_}\n".encode()
        assert cli("produce", "kept", "-b", address, "-p", "0", stdin=lines).code == 0
        seen = cli("consume", "kept", "-b", address).out
        process.kill()
        process.communicate()
    assert seen == "0\n1\n"


def test_classic_topics_are_on_the_local_disk(tmp_path, cli):
    process = start("dev", "--data", str(tmp_path), "--port", "0", "--classic")
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split()[1]
        assert cli("produce", "local", "-b", address, stdin=b"x\n").code == 0
        assert cli("dump-log", str(tmp_path / "local-0"), "--deep").code == 0
    finally:
        process.kill()
        process.communicate()


def refused(*arguments):
    code, out, err = finish(start(*arguments))
    assert (code, out) == (1, "")
    assert err.count("\n") == 1, err
    assert err.startswith("moldau: ")
    return err


def test_a_port_that_is_in_use_is_named_in_the_error(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in refused("dev", "--data", str(tmp_path), "--port", str(port))


def test_the_folder_of_a_running_node_is_refused(tmp_path):
    with moldau.testing.Node(data=str(tmp_path)):
        err = refused("dev", "--data", str(tmp_path), "--port", "0")
    assert err == f"moldau: {tmp_path} is in use by another process (it holds .lock)\n"


def test_the_folder_of_another_node_is_refused(tmp_path):
    with moldau.testing.Node(
        data=str(tmp_path), properties={"node.id": "7", "controller.quorum.voters": "7@x:1"}
    ):
        pass
    err = refused("dev", "--data", str(tmp_path), "--port", "0")
    assert err == f"moldau: {tmp_path} belongs to node 7, but node.id is 1.\n"


def test_a_new_node_writes_nothing_when_its_store_belongs_to_another_cluster(tmp_path):
    claim = tmp_path / "store" / ".moldau" / "clusters" / "the-other"
    claim.parent.mkdir(parents=True)
    claim.write_text("the-other")
    store = f"diskless.storage.url=file://{tmp_path}/store"
    err = refused("dev", "--data", str(tmp_path / "data"), "--port", "0", "--set", store)
    assert "store belongs to cluster the-other" in err
    assert list((tmp_path / "data").iterdir()) == []
    assert [each.name for each in claim.parent.iterdir()] == ["the-other"]


def test_a_file_in_place_of_the_data_folder_is_refused(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert str(file) in refused("dev", "--data", str(file), "--port", "0")


def write_config(tmp_path, **changes):
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@127.0.0.1:1",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
        **changes,
    }
    path = tmp_path / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return str(path)


def test_a_formatted_node_runs_by_its_file(tmp_path):
    config = write_config(tmp_path)
    assert "is not formatted" in refused("node", "--config", config)
    code, cluster_id, _ = finish(start("storage", "random-uuid"))
    assert code == 0
    formatted = finish(start("storage", "format", "-c", config, "-t", cluster_id.strip()))
    assert formatted == (0, f"formatted {tmp_path / 'data'}\n", "")
    process = start("node", "--config", config, "--set", "num.partitions=3", "--log-level", "error")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready 127.0.0.1:")
    process.terminate()
    assert finish(process)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "no.such.key=1"), ["no.such.key"]),
        (("--set", "num.partitions=many"), ["num.partitions", "many"]),
        (("--set", "num.partitions=0"), ["num.partitions"]),
    ],
)
def test_a_bad_key_is_named_with_the_reason(tmp_path, cli, arguments, words):
    for command in (("node", "--config", write_config(tmp_path)), ("dev", "--port", "0")):
        code, out, err = cli(*command, *arguments)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith("moldau: ")
        assert all(word in err for word in words)


def test_an_unknown_key_in_an_option_is_named(tmp_path):
    assert "no.such.key" in refused("node", "--config", write_config(tmp_path), "--set", "no.such.key=1")


def test_a_properties_file_that_cannot_be_read_is_an_error(tmp_path, cli):
    missing = str(tmp_path / "absent.properties")
    assert (
        cli("node", "--config", missing).err == f"moldau: cannot read {missing}: No such file or directory\n"
    )
    assert "Is a directory" in cli("node", "--config", str(tmp_path)).err


def test_help_starts_fast_because_it_imports_no_command():
    program = "import sys; from moldau.cli.main import main; main(['--help']); print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(process.stdout.split())
    assert "typer" in imported
    assert not imported & {"kio", "asyncio", "rich", "moldau.server", "moldau.network", "hypothesis"}


def test_a_reader_that_closes_the_pipe_early_causes_no_traceback(ready):
    _, address = ready
    environment = {**os.environ, "MOLDAU_BOOTSTRAP": address}
    command = (
        f"seq 1 50000 | {sys.executable} -m moldau produce piped >/dev/null"
        f" && {sys.executable} -m moldau consume piped | head -n 1"
    )
    ran = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert (ran.stdout, ran.stderr) == ("1\n", "")


def test_a_node_with_too_few_open_files_does_not_start(tmp_path):
    process = start(
        "dev",
        *("--data", str(tmp_path), "--port", "0"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    )
    code, out, err = finish(process)
    assert (code, out) == (1, "")
    assert err == (
        "moldau: the limit of open files is 64, and a node needs at least 256:"
        " raise it (ulimit -n, or LimitNOFILE of the service)\n"
    )


def test_a_node_raises_its_own_soft_limit_of_open_files(tmp_path):
    process = start(
        "dev",
        *("--data", str(tmp_path), "--port", "0"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256)),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
    finally:
        process.kill()
        process.communicate()


def test_a_closed_pipe_does_not_change_the_exit_code():
    """The reader closes the pipe early, as in ``moldau ... | head``."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    reading, writing = os.pipe()
    os.close(reading)
    with moldau.testing.Node() as node:
        done = subprocess.run(
            [sys.executable, "-m", "moldau", "topics", "list", "--bootstrap", node.bootstrap_servers],
            stdout=writing,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=TIMEOUT_S,
        )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
