"""Judges that no taken request stays without an answer, and that every budget gets back what it gave."""

import asyncio
from typing import Any

from moldau.simulation.history import History
from moldau.simulation.host import Host

SETTLE_S = 60
"""In which what is under way in a quiet node ends."""


async def judge_budgets(host: Host, history: History) -> None:
    """Nothing that was taken is still in hand; to be called when no client asks for anything."""
    assert host.process is not None
    node: Any = host.process.exhibit
    for _ in range(SETTLE_S):
        if not any(node.in_hand().values()):
            return
        await asyncio.sleep(1.0)
    for name, value in node.in_hand().items():
        if value:
            history.violate(f"{host.name} still has in hand: {name}: {value}")


def judge_defects(host: Host, history: History) -> None:
    """What the node reported as unexpected is what the story made it meet."""
    reported = sum(errors.count for errors in host.unexpected)
    met = sum(host.defects.met.values())
    if met and not reported:
        history.violate(f"{host.name} met {dict(host.defects.met)} and reported nothing")
    if reported and not met and not host.disk.error_count:  # a broken disk surprises SQLite, too
        problems = {error for errors in host.unexpected for error in errors.last_errors}
        history.violate(f"{host.name} reported what nobody made it meet: {sorted(problems)}")
