"""Rendezvous hashing. Each item ranks all candidates. The order of two candidates does not depend on the
other candidates.

The scores are the same in every process. Therefore brokers make the same choice without messages to each
other.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b


def score(item: str, candidate: int) -> int:
    """The score of a candidate for an item: 64 bits, evenly distributed. The highest score is preferred."""
    digest = blake2b(f"{item}|{candidate}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def preferred(item: str, candidates: Iterable[int]) -> int:
    """Return the candidate with the highest score for an item. ``candidates`` must not be empty.

    If a candidate is removed, only the items that preferred this candidate get another one. If a candidate is
    added, only the items that prefer the new candidate change.
    """
    return max(candidates, key=lambda candidate: (score(item, candidate), candidate))


def spread(items: Sequence[str], quotas: Mapping[int, int]) -> dict[str, int]:
    """Choose a candidate for each item. No candidate gets more items than its quota. The sum of the quotas
    must be at least the number of items.

    Pairs of an item and a candidate are matched in descending order of their scores. Therefore, if an item
    does not get a candidate because the quota is used up, all items of this candidate have a higher score for
    it.
    """
    pairs = sorted(
        ((score(item, candidate), item, candidate) for item in items for candidate in quotas), reverse=True
    )
    left = dict(quotas)
    found: dict[str, int] = {}
    for _, item, candidate in pairs:
        if item not in found and left[candidate] > 0:
            found[item] = candidate
            left[candidate] -= 1
    return found


def even_quotas(item_count: int, loads: Mapping[int, int], name: str) -> dict[int, int]:
    """Quotas that divide ``item_count`` items evenly among the candidates. If the division leaves a
    remainder, the candidates with the lowest loads get one item more.

    ``loads`` is the number of items that each candidate has already. If loads are equal, a hash of ``name``
    decides.
    """
    share, rest = divmod(item_count, len(loads))
    by_load = sorted(loads, key=lambda candidate: (loads[candidate], score(name, candidate)))
    return {candidate: share + (position < rest) for position, candidate in enumerate(by_load)}
