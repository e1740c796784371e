"""Each example of the documentation is run, or has a reason why it is not run."""

import os
import pathlib
import subprocess
import sys
from collections import Counter

import pytest
from page_examples import LANGUAGES, REASONS, blocks_of, pages, to_run

from moldau.pipeline.requirements import missing_java, missing_packages

NOT_RUN = {
    "CONTRIBUTING.md": 1,
    "README.md": 1,
    "docs/architecture/adding.md": 1,
    "docs/benchmarks-measurements.md": 4,
    "docs/benchmarks.md": 1,
    "docs/howto/backup.md": 2,
    "docs/howto/controllers.md": 2,
    "docs/howto/iceberg.md": 1,
    "docs/operations.md": 1,
    "docs/pipeline.md": 2,
    "docs/start.md": 2,
    "docs/tiered.md": 2,
}
HERE = pathlib.Path(__file__).parent
TIMEOUT_S = 800


@pytest.mark.parametrize("page", pages())
def test_each_block_names_its_language_and_why_it_is_not_run(page: str) -> None:
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{block.name} has no language"
        assert block.not_run in (None, *REASONS), f"{block.name}: {block.not_run}"


def test_few_blocks_are_not_run() -> None:
    left = Counter(block.page for page in pages() for block in to_run(page) if block.not_run)
    assert left == NOT_RUN


def test_the_examples_run() -> None:
    if reason := missing_packages() or missing_java():
        assert os.environ.get("CI") != "true", reason
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, str(HERE / "page_examples.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    shown = [line for line in done.stdout.splitlines() if not line.startswith("\tat ")]
    assert done.returncode == 0, "\n".join(shown[-80:])
    print(done.stdout)
    expected = sum(block.not_run is None for page in pages() for block in to_run(page))
    assert done.stdout.endswith(f"{expected} examples ran\n")
