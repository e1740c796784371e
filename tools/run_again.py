"""Run failed tests of real nodes, processes and clients a second time, without other tests. Report the tests
that now pass as flaky.

A deterministic test is never run a second time. The exit code is 0 if every failure was a real-time test that
now passes.
"""

import argparse
import pathlib
import subprocess
import sys

FAILURES_MAX = 5
"""If more tests than this number have failed, the cause is probably an error and not a slow machine. No test
is then run again."""


def main() -> int:
    """Read the failures that ``pytest --failures-to`` wrote."""
    parser = argparse.ArgumentParser(prog="tools/run_again.py", description=__doc__)
    parser.add_argument("failures", type=pathlib.Path)
    parser.add_argument("--flaky-to", type=pathlib.Path, help="append a line for each test that passed now")
    options = parser.parse_args()
    path: pathlib.Path = options.failures
    if not path.exists():
        print("the first run was not finished: nothing is run again", file=sys.stderr)
        return 1
    failures = [line.split(" ", 1) for line in path.read_text().splitlines()]
    deterministic = [test for kind, test in failures if kind != "real_time"]
    if deterministic or not failures or len(failures) > FAILURES_MAX:
        print(f"{len(failures)} failures, {len(deterministic)} of them deterministic: nothing is run again")
        return 1
    tests = [test for _, test in failures]
    code = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:randomly", *tests], check=False
    ).returncode
    if not code and options.flaky_to:
        with options.flaky_to.open("a") as file:
            file.writelines(f"flaky, to be mended: {test}\n" for test in tests)
    return code


if __name__ == "__main__":
    sys.exit(main())
