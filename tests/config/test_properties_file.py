import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.config import ConfigError, parse_overrides, parse_properties


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1\nb = 2\nc:3\nd 4\ne\n", {"a": "1", "b": "2", "c": "3", "d": "4", "e": ""}),
        ("# comment\n! also\n\n   \t# and this\nkey=value # not this", {"key": "value # not this"}),
        ("list=a,\\\n     b,\\\n     c\nnext=1", {"list": "a,b,c", "next": "1"}),
        ("even=back\\\\\nodd=1", {"even": "back\\", "odd": "1"}),
        ("a\\ b\\=c\\:d=x=y", {"a b=c:d": "x=y"}),
        ("tab=\\t|\\u00e9|\\q", {"tab": "\t|é|q"}),
        ("twice=1\ntwice=2", {"twice": "2"}),
        ("windows=1\r\nline=2\r\n", {"windows": "1", "line": "2"}),
        ("trailing=kept  ", {"trailing": "kept  "}),
        ("continued=1\\\n# part of it", {"continued": "1# part of it"}),
        ("pair=\\ud83d\\ude00", {"pair": "😀"}),
        ("end=\\", {"end": ""}),
        ("=value", {"": "value"}),
    ],
)
def test_property_files_are_parsed_as_in_java(text, values):
    assert parse_properties(text) == values


def test_malformed_escape_is_named():
    with pytest.raises(ConfigError, match="uxxxx"):
        parse_properties("a=\\u12")


def escape(text):
    out = "".join("\\" + c if c in "\\=: #!" else c for c in text)
    return out.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t").replace("\f", "\\f")


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8")))
)
def test_escaped_text_is_restored(values):
    text = "\n".join(f"{escape(key)}={escape(value)}" for key, value in values.items())
    assert parse_properties(text) == values


@given(st.text())
def test_any_text_is_parsed_or_refused(text):
    with contextlib.suppress(ConfigError):
        parse_properties(text)


def test_overrides_of_the_command_line():
    assert parse_overrides(["a=1", " b.c = x=y "]) == {"a": "1", "b.c": "x=y"}
    for bad in ("a", "=1"):
        with pytest.raises(ConfigError, match="KEY=VALUE"):
            parse_overrides([bad])
