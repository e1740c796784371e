"""Random streams: every part of a world has its own, so that adding one changes no other."""

import random


def stream(seed: int, *names: object) -> random.Random:
    """A generator that depends on the seed and the names only (never on PYTHONHASHSEED)."""
    return random.Random(":".join(map(str, (seed, *names))))
