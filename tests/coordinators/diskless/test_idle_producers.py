"""Producers that have sent nothing for a long time. They stay known, but their number is limited."""

import pytest

from moldau.coordinators.diskless.state import producers
from moldau.coordinators.diskless.state.producers import KNOWN_MS, expiry_cutoff_ms

DAY_MS = 86_400_000
NOW_MS = 400 * DAY_MS


def kept(times_ms: list[int], expiration_ms: int = DAY_MS) -> list[int]:
    cutoff_ms = expiry_cutoff_ms(NOW_MS, expiration_ms, times_ms)
    return [time_ms for time_ms in times_ms if time_ms >= cutoff_ms]


def test_an_idle_producer_is_known_for_a_month() -> None:
    assert kept([NOW_MS - KNOWN_MS - 1, NOW_MS - KNOWN_MS, NOW_MS - 2 * DAY_MS, NOW_MS]) == [
        NOW_MS - KNOWN_MS,
        NOW_MS - 2 * DAY_MS,
        NOW_MS,
    ]


def test_a_longer_expiration_is_respected() -> None:
    times_ms = [NOW_MS - 2 * KNOWN_MS, NOW_MS - 2 * KNOWN_MS - 1]
    assert kept(times_ms, expiration_ms=2 * KNOWN_MS) == times_ms[:1]


@pytest.mark.parametrize("count", [3, 4, 9])
def test_the_oldest_of_too_many_idle_producers_are_forgotten(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "IDLE_MAX", 3)
    idle = [NOW_MS - 2 * DAY_MS - number for number in range(count)]
    busy = [NOW_MS - number for number in range(20)]
    assert kept(busy + idle) == busy + idle[:3]
