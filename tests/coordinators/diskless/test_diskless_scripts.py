"""Golden scripts of the diskless shard. ``pytest tests/coordinators --rewrite`` writes their
outputs again."""

from pathlib import Path

import pytest
from diskless_script import Script

SCRIPTS = sorted((Path(__file__).parent / "golden").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, pytestconfig: pytest.Config) -> None:
    text = path.read_text()
    now = Script().run(text)
    if pytestconfig.getoption("--rewrite", default=False):
        path.write_text(now)
    else:
        assert now == text
