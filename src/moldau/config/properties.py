"""Reads files in the syntax of ``java.util.Properties``."""

import re
from collections.abc import Iterable, Iterator

from moldau.config.definition import ConfigError

_FOUR_HEX_DIGITS = re.compile(r"[0-9a-fA-F]{4}")
_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values. If a key occurs twice, its last value applies, as in Java."""
    values: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split(line)
        values[_unescape(key)] = _unescape(value)
    return values


def parse_overrides(settings: Iterable[str]) -> dict[str, str]:
    """Parse the ``KEY=VALUE`` texts of the command line. Raises :class:`ConfigError`."""
    values: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(setting, f"{setting!r} is not of the form KEY=VALUE")
        values[key.strip()] = value.strip()
    return values


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    continues = False
    for natural in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = natural.lstrip(_BLANKS)
        if not continues and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        continues = backslashes % 2 == 1
        pending += line[:-1] if continues else line
        if not continues:
            yield pending
            pending = ""
    if pending:
        yield pending


def _split(line: str) -> tuple[str, str]:
    """Key and value, still with escapes. They are split at the first ``=``, ``:`` or blank that is not
    escaped."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANKS:
        end += 2 if line[end] == "\\" else 1
    key, rest = line[:end], line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return key, rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            if character != "\\":
                out.append(character)
            continue
        character = text[position]
        position += 1
        if character == "u":
            digits = text[position : position + 4]
            if _FOUR_HEX_DIGITS.fullmatch(digits) is None:
                raise ConfigError(text, f"Malformed \\uxxxx escape in {text!r}")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(character, character))
    # Two escapes together may represent one Unicode character above U+FFFF.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
