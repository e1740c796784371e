"""Streams of random numbers. Every part of a world has its own stream. If a stream is added, the other
streams do not change."""

import random


def stream(seed: int, *names: object) -> random.Random:
    """A generator that depends only on the seed and the names. It does not depend on PYTHONHASHSEED."""
    return random.Random(":".join(map(str, (seed, *names))))
