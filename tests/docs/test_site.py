"""The documentation's site builds without a warning. No link is broken, and each page is in the
navigation."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def build(config: pathlib.Path, site: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-f", str(config), "-d", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_is_built_without_a_warning(site: pathlib.Path) -> None:
    assert (site / "index.html").exists()
    assert 'class="mermaid"' in (site / "concepts/index.html").read_text()


def test_diagrams_need_no_network(site: pathlib.Path) -> None:
    if not (ROOT / ".tools/mermaid").exists():
        message = "Mermaid is missing: python tools/fetch_clients.py"
        assert os.environ.get("CI") != "true", message
        pytest.skip(message)
    assert 'src="../assets/mermaid/mermaid.min.js"' in (site / "concepts/index.html").read_text()
    assert (site / "assets/mermaid/mermaid.min.js").exists()
    assert (site / "assets/mermaid/LICENSE").exists()


@pytest.mark.parametrize("target", ["missing.md", "index.md#missing"])
def test_a_broken_link_ends_the_build(tmp_path: pathlib.Path, target: str) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(f"# Home\n\n[a link]({target})\n")
    text = (ROOT / "mkdocs.yml").read_text()
    text = text[: text.index("\nnav:")].replace("- tools/", f"- {ROOT}/tools/")
    (tmp_path / "mkdocs.yml").write_text(text)
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "missing" in done.stdout + done.stderr
