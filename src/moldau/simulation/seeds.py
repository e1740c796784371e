"""Random streams. Every part of a world has its own stream, so that adding a stream changes no other."""

import random


def stream(seed: int, *names: object) -> random.Random:
    """A generator that depends only on the seed and the names (never on PYTHONHASHSEED)."""
    return random.Random(":".join(map(str, (seed, *names))))
