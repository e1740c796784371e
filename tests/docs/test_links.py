"""Each relative link of each Markdown file leads to a file of the repository, and to a heading in it.

The site's build checks only the links between the pages of ``docs/``.
"""

import pathlib
import re
from collections.abc import Iterator
from urllib.parse import unquote

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*#*$", re.MULTILINE)


def text_of(file: pathlib.Path) -> str:
    """The text of a page without its blocks and its code."""
    return re.sub(r"`[^`]*`", "", FENCED.sub("", file.read_text()))


def anchors_of(file: pathlib.Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site name them."""
    anchors: set[str] = set()
    for heading in HEADING.findall(FENCED.sub("", file.read_text())):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        repeated = sum(re.fullmatch(rf"{re.escape(name)}(-\d+)?", anchor) is not None for anchor in anchors)
        anchors.add(f"{name}-{repeated}" if repeated else name)
    return anchors


def broken_links(file: pathlib.Path) -> Iterator[str]:
    """The relative links of a page that lead nowhere."""
    for link in LINK.findall(text_of(file)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (file.parent / path).resolve() if path else file
        has_anchor = not anchor or (
            target.suffix == ".md" and target.exists() and anchor in anchors_of(target)
        )
        if not target.exists() or not has_anchor:
            yield link


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_link_is_broken(file: pathlib.Path) -> None:
    assert list(broken_links(file)) == []


def test_broken_links_are_found(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# Other\n\n## A `b` c: d\n\n## Twice\n\n## Twice\n")
    good = "(other.md) [b](other.md#a-b-c-d) [c](#here) [d](other.md#twice-1) [e](https://example.org/#x)"
    wrong = ["missing.md", "other.md#missing", "#missing", "other.md#twice-2"]
    links = " ".join(f"[x]({link})" for link in wrong)
    page.write_text(f"# Here\n\n[a]{good}\n{links}\n\n```text\n[z](absent.md)\n# not a heading\n```\n")
    assert list(broken_links(page)) == wrong
