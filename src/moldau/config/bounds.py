"""Checks of values. Each check returns the reason for which it refuses a value, or ``None``."""

import math
import re
from collections.abc import Callable, Sequence

from moldau.config.definition import ParsedValue


class Check:
    """A check of a config value. ``description`` is for the documentation of the config."""

    def __init__(self, test: Callable[[ParsedValue], str | None], description: str) -> None:
        self._test = test
        self.description = description

    def __call__(self, value: ParsedValue) -> str | None:
        return self._test(value)


def at_least(low: float) -> Check:
    return Check(
        lambda value: f"Value must be at least {low}" if _number(value) < low else None, f"[{low},...]"
    )


def off_or_at_least(low: float) -> Check:
    """Allow the value -1 ("off"), and values of at least ``low``."""

    def test(value: ParsedValue) -> str | None:
        is_off = _number(value) == -1
        return None if is_off or _number(value) >= low else f"Value must be -1 or at least {low}"

    return Check(test, f"-1, [{low},...]")


def above(low: float, up_to: float = math.inf) -> Check:
    def test(value: ParsedValue) -> str | None:
        if _number(value) <= low:
            return f"Value must be more than {low}"
        if _number(value) > up_to:
            return f"Value must be no more than {up_to}"
        return None

    return Check(test, f"({low},...{'' if up_to == math.inf else f',{up_to}'}]")


def between(low: float, high: float) -> Check:
    def test(value: ParsedValue) -> str | None:
        if _number(value) < low:
            return f"Value must be at least {low}"
        if _number(value) > high:
            return f"Value must be no more than {high}"
        return None

    return Check(test, f"[{low},...,{high}]")


def not_empty(what: str = "String") -> Check:
    """Refuse an empty text or an empty list."""

    def test(value: ParsedValue) -> str | None:
        is_empty = not value or (isinstance(value, tuple) and not all(value))
        return f"{what} must be non-empty" if is_empty else None

    return Check(test, "non-empty")


def list_of_any(*, may_be_empty: bool = True) -> Check:
    """Refuse a list with an empty entry. Without ``may_be_empty``, also refuse an empty list."""

    def test(value: ParsedValue) -> str | None:
        parts = _parts(value)
        if not parts and not may_be_empty:
            return "List must not be empty"
        return None if all(parts) else "List must not contain empty entries"

    return Check(test, "" if may_be_empty else "non-empty list")


def one_of_any_case(*choices: str) -> Check:
    listed = ", ".join(choices)
    upper = {choice.upper() for choice in choices}
    return Check(
        lambda value: None if str(value).upper() in upper else f"String must be one of: {listed}",
        f"[{listed}], in any case",
    )


def one_of(*choices: str) -> Check:
    listed = ", ".join(choices)
    return Check(
        lambda value: None if value in choices else f"String must be one of: {listed}", f"[{listed}]"
    )


def list_of(*choices: str, may_be_empty: bool = True, may_repeat: bool = False) -> Check:
    listed = ", ".join(choices)

    def test(value: ParsedValue) -> str | None:
        parts = _parts(value)
        if not parts and not may_be_empty:
            return "Value must not be empty"
        if not may_repeat and len(set(parts)) != len(parts):
            return "Value must not contain duplicates"
        if any(part not in choices for part in parts):
            return f"String must be one of: {listed}"
        return None

    return Check(test, f"[{listed}]")


def protocols(*choices: str) -> Check:
    """Check a list of enabled group protocols. The list must contain the classic protocol."""
    check = list_of(*choices)

    def test(value: ParsedValue) -> str | None:
        reason = check(value)
        return reason or (None if "classic" in _parts(value) else "The 'classic' protocol must be enabled")

    return Check(test, check.description)


_REPLICA = re.compile(r"([0-9]+:[0-9]+)?")
_DURATION = re.compile(r"P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?", re.IGNORECASE)


def offset_reset(key: str) -> Check:
    """Check the start offset of a share group. A duration is in ISO 8601 form. Its largest unit is days
    (KIP-1106)."""

    def test(value: ParsedValue) -> str | None:
        text = str(value)
        kind, _, duration = text.partition(":")
        if text in ("earliest", "latest") or (kind == "by_duration" and _DURATION.fullmatch(duration)):
            return None
        return (
            f"Invalid value `{text}` for configuration {key}. The value must be either 'earliest', 'latest' "
            "or of the format 'by_duration:<PnDTnHnMn.nS>'."
        )

    return Check(test, "[latest, earliest, by_duration:PnDTnHnMn.nS]")


def gzip_level() -> Check:
    def test(value: ParsedValue) -> str | None:
        return (
            None
            if value == -1 or 1 <= _number(value) <= 9
            else "Value must be between 1 and 9 or equal to -1"
        )

    return Check(test, "[1,...,9] or -1")


def throttled_replicas() -> Check:
    """Check a list of throttled replicas. The value is ``*``, or a list of partition:broker pairs."""

    def test(value: ParsedValue) -> str | None:
        parts = _parts(value)
        if "".join(parts) == "*" or all(_REPLICA.fullmatch(part) for part in parts):
            return None
        return (
            "it must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        )

    return Check(test, "[partitionId]:[brokerId],[partitionId]:[brokerId],...")


def _number(value: ParsedValue) -> float:
    assert isinstance(value, int | float)
    return value


def _parts(value: ParsedValue) -> Sequence[str]:
    assert isinstance(value, tuple)
    return value
