"""A process may end immediately after a request. It then ends with its own exit code, and not by SIGABRT."""

import subprocess
import sys

import pytest

LATE = """
import asyncio.selector_events, os, sys, threading, time

wake = asyncio.selector_events.BaseSelectorEventLoop._write_to_self

def wake_and_come_back_late(loop):
    wake(loop)
    if not isinstance(threading.current_thread(), threading._MainThread):
        late = time.monotonic() + 0.4
        while not sys.is_finalizing() and time.monotonic() < late:
            time.sleep(0.002)

asyncio.selector_events.BaseSelectorEventLoop._write_to_self = wake_and_come_back_late

class SlowToFlush:
    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        return getattr(self.real, name)

    def flush(self):
        if sys.is_finalizing():
            time.sleep(0.5)
        self.real.flush()

sys.stdout = SlowToFlush(sys.stdout)
"""
"""A program that forces a rare case: the thread that delivers a response calls Python while the interpreter
shuts down."""

READ = """
from moldau.objects.obstore_storage import open_obstore

url, endpoint, key = sys.argv[1:]
options = {"endpoint": endpoint, "access.key.id": "a", "secret.access.key": "b", "region": "us-east-1"}
storage = open_obstore(url, options | {"path.style": "true", "allow.http": "true"})

async def read():
    await storage.upload(key, b"content", 7)
    print(bytes(await storage.fetch(key, 0, 7)))

asyncio.run(read())
sys.exit(3)
"""

DUMP = """
from moldau.cli.main import main

url, endpoint, key = sys.argv[1:]
options = {"endpoint": endpoint, "access.key.id": "a", "secret.access.key": "b", "region": "us-east-1"}
options |= {"path.style": "true", "allow.http": "true"}
given = [part for name, value in options.items() for part in ("--storage", f"{name}={value}")]
sys.exit(main(["dump-log", f"{url}/{key}", *given]))
"""


@pytest.mark.parametrize(
    ("program", "code", "output", "complaint"),
    [
        pytest.param(READ, 3, "b'content'\n", "", id="script"),
        pytest.param(DUMP, 1, "{url}/wal/0/absent: WAL object\n", "moldau: {url}/wal/0/absent", id="command"),
    ],
)
def test_a_process_ends_with_its_own_exit_code_right_after_a_request(
    s3_endpoint: str, s3_bucket: str, program: str, code: int, output: str, complaint: str
) -> None:
    url = f"s3://{s3_bucket}"
    ended = subprocess.run(
        [sys.executable, "-c", LATE + program, url, s3_endpoint, "wal/0/absent"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (ended.returncode, ended.stdout) == (code, output.format(url=url)), ended.stderr
    assert ended.stderr.startswith(complaint.format(url=url))
    assert ended.stderr.count("\n") <= 1
