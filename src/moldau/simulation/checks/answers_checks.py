"""Checks that every accepted request gets a response, and that every budget is fully released. A budget
limits how much of a resource a node may use, for example the bytes in its buffers.

After a process was stopped, it must have no resources in use. A process that is killed is checked until the
kill. Counts of bytes and batches in use must return to zero soon after the work that uses them is over.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

from moldau.simulation.history import History
from moldau.simulation.world.host import Host

SETTLE_S = 60
"""Time in seconds within which a node must complete the work in progress if it gets no new requests."""
STOP_LIMIT_S = 200.0
"""Time limit of a clean stop in seconds. It is longer than the grace periods of connections, uploads and
commits."""
_LOOK_EVERY_S: Final = 0.5
_OUT_OF_BALANCE_S: Final = 10.0
_TAKEN_BY: Final = {
    "buffered bytes": ("files", "unanswered files", "batches in the buffer", "batches under way"),
    "batches under way": ("files", "unanswered files"),
    "read bytes at the tail": ("partitions being read",),
    "read bytes of catching up": ("partitions being read",),
    "cold read bytes": ("cold reads",),
}
"""For the name of each resource, the kinds of work that use it. The used amount of a resource may be above
zero only while such work is in progress."""


def out_of_balance(in_hand: Mapping[str, int]) -> Iterator[str]:
    """Return the names of the resources that have a wrong amount. An amount is wrong if it is below zero. It
    is also wrong if it is above zero although no work that uses the resource is in progress."""
    for name, value in in_hand.items():
        takers = _TAKEN_BY.get(name, ())
        if value < 0 or (value and takers and not any(in_hand.get(taker, 0) for taker in takers)):
            yield name


async def watch_budgets(host: Host, history: History) -> None:
    """Check every process of a node while the process runs. Runs until the task is cancelled."""
    since_s: dict[tuple[int, str], float] = {}
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        process = host.process
        node: Any = None if process is None or not process.alive else process.exhibit
        if process is None or node is None or process.paused:
            continue
        names = set(out_of_balance(node.in_hand()))
        now_s = history.now_s()
        since_s = {(host.life, name): since_s.get((host.life, name), now_s) for name in sorted(names)}
        for (life, name), began_s in since_s.items():
            if now_s - began_s >= _OUT_OF_BALANCE_S:
                history.violate(f"life {life} of {host.name} has lost {name}: {node.in_hand()}")
                return


async def stop_and_check(host: Host, history: History) -> None:
    """Stop a node cleanly. Afterwards the node must have no resources in use."""
    process = host.process
    if process is None or process.main is None or process.exhibit is None:
        host.kill()
        return
    node: Any = process.exhibit
    context = process.context()
    process.serves = False  # from now on, blocking calls on the node's event loop are allowed
    process.main.cancel()
    await asyncio.wait([process.main], timeout=STOP_LIMIT_S)
    stopping = context.run(asyncio.get_running_loop().create_task, node.stop(), context=context)
    await asyncio.wait([stopping], timeout=STOP_LIMIT_S)
    if not stopping.done():
        history.violate(f"life {host.life} of {host.name} does not stop")
    elif stopping.exception() is not None:
        history.violate(f"life {host.life} of {host.name} fails to stop: {stopping.exception()!r}")
    left = {name: value for name, value in node.in_hand().items() if value}
    if left:
        history.violate(f"life {host.life} of {host.name} has stopped with this in hand: {left}")
    host.kill()


async def check_budgets(host: Host, history: History) -> None:
    """Check that no resources are in use. Call this when no client sends requests."""
    assert host.process is not None
    node: Any = host.process.exhibit
    for _ in range(SETTLE_S):
        if not any(node.in_hand().values()):
            return
        await asyncio.sleep(1.0)
    for name, value in node.in_hand().items():
        if value:
            history.violate(f"{host.name} still has in hand: {name}: {value}")


def check_defects(host: Host, history: History) -> None:
    """Check that the node reported the planted defects as unexpected errors, and that the node reported no
    other errors."""
    reported = sum(errors.count for errors in host.unexpected)
    met = sum(host.defects.met.values())
    if met and not reported:
        history.violate(f"{host.name} met {dict(host.defects.met)} and reported nothing")
    # a broken disk also causes unexpected errors of SQLite
    if reported and not met and not host.disk.error_count:
        problems = {error for errors in host.unexpected for error in errors.last_errors}
        history.violate(f"{host.name} reported problems without a cause in the story: {sorted(problems)}")
