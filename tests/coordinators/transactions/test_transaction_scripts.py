"""Golden scripts of the transaction coordinator. ``pytest tests/coordinators --rewrite`` writes their outputs
again."""

from pathlib import Path

import pytest
from transaction_script import run_script

SCRIPTS = sorted((Path(__file__).parent / "golden").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, pytestconfig: pytest.Config) -> None:
    text = path.read_text()
    now = run_script(text)
    if pytestconfig.getoption("--rewrite", default=False):
        path.write_text(now)
    else:
        assert now == text
