"""``.ci/run`` ends with the exit code of its commands. Its own clean-up does not change this exit code."""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]

MAKE = """#!/bin/sh
target=$1 report=${2#ARGS=--failures-to }
[ "$target" = "$FAILING" ] || exit 0
echo "$FAILURE" > "$report"
exit 2
"""

PYTHON = """#!/bin/sh
[ "$2" = pytest ] && exit "$SECOND_RUN"
[ "$1" = tools/run_again.py ] && { shift; exec "$REAL_PYTHON" -c "$RUN_AGAIN" "$@"; }
exit 0
"""

RUN_AGAIN = """
import runpy, sys
sys.argv[0] = {script!r}
sys.executable = {python!r}
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder that contains the real ``.ci/run`` and a replacement for every program that it calls."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    programs = {"bin/make": MAKE, "bin/kcat": "#!/bin/sh\n"}
    programs |= {f"{venv}/bin/python": PYTHON for venv in (".venv", ".venv-spark-oldest")}
    for name, text in programs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return tmp_path


def ci(
    checkout: pathlib.Path, failing: str = "", failure: str = "", second_run: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run ``.ci/run`` to its end. If ``failing`` names a target of make, this target fails."""
    run_again = RUN_AGAIN.format(
        script=str(ROOT / "tools/run_again.py"), python=str(checkout / ".venv/bin/python")
    )
    return subprocess.run(
        ["bash", checkout / ".ci/run"],
        env={
            "PATH": f"{checkout / 'bin'}:/usr/bin:/bin",
            "FAILING": failing,
            "FAILURE": failure,
            "SECOND_RUN": str(second_run),
            "REAL_PYTHON": sys.executable,
            "RUN_AGAIN": run_again,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_green_run_ends_with_0(checkout: pathlib.Path) -> None:
    assert ci(checkout).returncode == 0


@pytest.mark.parametrize("target", ["test", "test-oldest-spark"])
def test_a_flaky_test_is_named_in_the_last_line(checkout: pathlib.Path, target: str) -> None:
    run = ci(checkout, target, "real_time tests/test_a.py::test_b")
    assert run.returncode == 0
    assert run.stdout.splitlines()[-1] == "flaky, to be mended: tests/test_a.py::test_b"


@pytest.mark.parametrize("target", ["test", "test-oldest-spark", "check", "setup"])
def test_a_failure_ends_the_run_with_an_error(checkout: pathlib.Path, target: str) -> None:
    assert ci(checkout, target, "deterministic tests/test_a.py::test_b").returncode != 0


def test_a_test_that_fails_twice_ends_the_run_with_an_error(checkout: pathlib.Path) -> None:
    assert ci(checkout, "test", "real_time tests/test_a.py::test_b", second_run=1).returncode == 1
