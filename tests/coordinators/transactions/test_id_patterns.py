"""Patterns of transactional ids match the same ids as Python's regular expressions, in limited time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.coordinators.transactions.id_patterns import matcher
from moldau.runtime import ErrorCode, KafkaError

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\W", r"\.", "-", "[]a]", "[a-]"])
SIGNS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "*?"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    parts = st.lists(inner, max_size=3)
    return st.one_of(
        parts.map("".join),
        st.tuples(parts.map("|".join), SIGNS).map(lambda each: f"({each[0]}){each[1]}"),
        parts.map(lambda each: f"(?:{''.join(each)})"),
    )


PATTERNS = st.recursive(st.tuples(ATOMS, SIGNS).map("".join), _larger, max_leaves=8)
NAMES = st.text("abc.-]1\n", max_size=8)


@given(PATTERNS, st.lists(NAMES, max_size=10))
def test_a_pattern_matches_the_ids_that_python_matches(pattern: str, names: list[str]) -> None:
    matches = matcher(pattern)
    for name in names:
        assert matches(name) is (not pattern or re.fullmatch(pattern, name) is not None)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (None, ["", "a"], []),
        ("orders-[0-9]+", ["orders-7", "orders-42"], ["orders-", "orders-x", "my-orders-7"]),
        ("^orders-.*$", ["orders-", "orders-7"], ["my-orders-7", "orders-\n"]),
        ("^a$|^b$", ["a", "b"], ["", "ab"]),
        ("(web|mobile)-app", ["web-app", "mobile-app"], ["app", "web-mobile-app"]),
        (r"a\.b\\c", [r"a.b\c"], [r"axb\c"]),
        ("[^,]{2,3}", ["ab", "abc"], ["a", "a,", "abcd"]),
        (r"[\w.]+\t", ["a_1.\t"], ["a-1\t"]),
        ("a{,2}", ["a{,2}"], ["aa"]),
        ("ä|ö.", ["ä", "öö"], ["ö"]),
    ],
)
def test_the_syntax_is_that_of_re2(pattern: str | None, matching: list[str], others: list[str]) -> None:
    matches = matcher(pattern)
    assert [name for name in matching + others if matches(name)] == matching


INVALID = [
    "(",
    ")",
    "(a",
    "a)",
    "[",
    "[a",
    "[]",
    "[b-a]",
    "*",
    "a|*",
    "a**",
    "a{2}{3}",
    "{2}",
    "a{3,2}",
    "\\",
]
UNSUPPORTED = [
    "(?i)a",
    "(?P<x>a)",
    r"\pL",
    r"\ba",
    r"(a)\1",
    "[[:alpha:]]",
    "a^b",
    "(a$)",
    r"\x61",
    r"[a-\d]",
]
TOO_LARGE = [
    "a{501}",
    "a{1001}",
    "(a{30}){30}",
    "((((){1000}){1000}){1000}){1000}",
    "(" * 60 + ")" * 60,
    "a" * 501,
]


@pytest.mark.parametrize("pattern", [*INVALID, *UNSUPPORTED, *TOO_LARGE])
def test_a_pattern_that_is_invalid_or_not_supported_is_refused(pattern: str) -> None:
    with pytest.raises(KafkaError, match="the pattern cannot be used") as refused:
        matcher(pattern)
    assert refused.value.code is ErrorCode.invalid_regular_expression


def test_a_pattern_is_matched_without_backtracking() -> None:
    """A search with backtracking would try more combinations than there are atoms on Earth."""
    matches = matcher("(a*)*(a|aa)+(a?){50}b")
    assert not matches("a" * 500)
    assert matches("a" * 500 + "b")
