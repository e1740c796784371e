"""Delays the end of a process until obstore's threads have left Python.

Such a thread passes a result to the event loop. The event loop may end the program before the thread has
returned from Python. CPython before 3.14 ends a thread that returns to an interpreter during shutdown, and
Rust then aborts the process. In this case all work is done, but the exit code is the code of SIGABRT.
"""

import atexit
import functools
import sys
import time
from types import FrameType
from typing import Final

__all__ = ["leave_python_before_exit"]

_HANDING_OVER: Final = "call_soon_threadsafe"
_LOOK_EVERY_S: Final = 0.002
_QUIET_LOOKS: Final = 3
"""Number of consecutive checks that must find no thread, because a cancelled request enters Python once
more.
"""
_LOOKS_MAX: Final = 500


@functools.cache
def leave_python_before_exit() -> None:
    """Wait for obstore's threads at the exit of this process, at most for a second."""
    atexit.register(_wait)


def _wait() -> None:
    quiet = 0
    for _ in range(_LOOKS_MAX):
        # The threads run Python code during the sleep. No event loop runs at the exit of the process.
        time.sleep(_LOOK_EVERY_S)  # noqa: TID251
        quiet = 0 if any(map(_hands_over, sys._current_frames().values())) else quiet + 1
        if quiet == _QUIET_LOOKS:
            return


def _hands_over(frame: FrameType) -> bool:
    """Whether Rust code called Python in this thread. Python's own threads start in another way."""
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name == _HANDING_OVER
