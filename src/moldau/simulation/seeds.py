"""Streams of chance: every part of a world draws from its own, so that adding one moves no other."""

import random


def stream(seed: int, *names: object) -> random.Random:
    """A generator that depends on the seed and the names only (never on PYTHONHASHSEED)."""
    return random.Random(":".join(map(str, (seed, *names))))
