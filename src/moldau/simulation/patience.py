"""A bound in CPU time, for a failure that virtual time cannot end: a callback that does not return."""

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_FRAMES_SHOWN = 4


class StuckError(SystemExit):
    """Not an ``Exception``, so that no task can catch it: a hanging program must not continue."""


@contextmanager
def patience(cpu_s: float) -> Iterator[None]:
    """Raise :class:`StuckError` in the running code after this much CPU time.

    CPU time rather than wall time, so that a busy machine fails no history. Signals reach the main thread
    only; in another one there is no bound.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_signal: int, frame: FrameType | None) -> None:
        stack = traceback.extract_stack(frame)[-_FRAMES_SHOWN:]
        at = " < ".join(f"{entry.name}:{entry.lineno}" for entry in reversed(stack))
        raise StuckError(f"no end after {cpu_s:g} s of processor time, at {at}")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
