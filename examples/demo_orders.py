"""The demo's records: orders of many customers."""

import json
import random
from collections.abc import Iterator


def orders(count: int, seed: int = 7) -> Iterator[tuple[str, bytes]]:
    """A realistic stream of orders. There are many customers, and a few of them order often. Values have 100
    to 400 bytes."""
    chance = random.Random(seed)
    for number in range(count):
        customer = f"customer-{int(chance.paretovariate(1.2)) % 500:03d}"
        order = {
            "order": number,
            "customer": customer,
            "amount": round(chance.lognormvariate(3, 1), 2),
            "items": [chance.randrange(10_000) for _ in range(chance.randrange(1, 40))],
        }
        yield customer, json.dumps(order).encode()
