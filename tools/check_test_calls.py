"""Fail if a test calls a function with the wrong arguments, or uses a name or attribute that does not exist.

mypy reads all tests, also functions without types. Only errors of these kinds are reported, because the tests
do not have complete types. The check finds calls that still use an old signature, even if their tests are not
run.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import Final

CODES: Final = ("call-arg", "name-defined", "attr-defined")
OPTIONS: Final = (
    "--config-file=",
    # The results of the strict check of src/ are stored separately, because its options are different.
    "--cache-dir=.mypy_cache/tests",
    "--python-version=3.11",
    "--check-untyped-defs",
    "--ignore-missing-imports",
    "--follow-imports=silent",
    "--explicit-package-bases",
    "--namespace-packages",
    "--show-error-codes",
    "--no-error-summary",
    "--no-pretty",
    "--no-color-output",
)
PATH: Final = os.pathsep.join(("src", "tests", "."))
"""The folders in which mypy searches for modules. It finds the tests' own modules in ``tests``. It finds the
packages ``bench`` and ``tools`` in the root."""


def findings(lines: Iterable[str]) -> list[str]:
    """The lines of mypy's output that are reported."""
    return [line for line in lines if re.search(rf"\[(?:{'|'.join(CODES)})\]$", line)]


def main() -> int:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *OPTIONS, "tests"],
        env={**os.environ, "MYPYPATH": PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):  # mypy could not read the tests
        print(done.stdout + done.stderr)
        return 1
    found = findings(done.stdout.splitlines())
    print("\n".join(found) or "no wrong call in tests")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
