"""Catches exceptions that no code expects, logs each kind of exception once, and shows the last exception on
the health page.

Some code must do a cleanup after a failure. For example, the code must answer a request with an error, or
return bytes to a budget. Such code runs within :meth:`contained`, which gets the cleanup as a function.
Therefore an exception from a defect or from a plug-in ends only one operation, and is reported.
"""

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

__all__ = ["UnexpectedErrors"]

_log = logging.getLogger(__name__)

SHOWN_S: Final = 300.0
"""Time for which the health page shows the last error."""
_KINDS_MAX: Final = 1_000


class UnexpectedErrors:
    """The unexpected errors of one node. Use it on the node's event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._last = ""
        self._last_s = 0.0
        self._kinds: dict[tuple[str, type[BaseException], str], int] = {}

    @property
    def last_errors(self) -> list[str]:
        """The kinds of errors that were reported."""
        return [f"{work}: {kind.__name__} at {origin}" for work, kind, origin in self._kinds]

    def report(self, work: str, error: BaseException) -> None:
        """Report that ``work`` failed. The first error of a kind is logged with its stack, and later errors
        of the kind are counted.

        ``work`` is a constant phrase. Errors of one type from one line of code are of one kind.
        """
        self.count += 1
        self._last = f"{work}: {error!r}"
        self._last_s = asyncio.get_running_loop().time()
        kind = (work, type(error), _origin(error))
        count = self._kinds.get(kind, 0) + 1
        if count == 1 and len(self._kinds) >= _KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = count
        if count == 1:
            _log.error("%s failed unexpectedly: %r", work, error, exc_info=error)
        elif count in (10, 100, 1_000, 10_000):
            _log.error("%s has failed unexpectedly %d times: %r", work, count, error)

    def contained(
        self,
        work: str,
        on_failure: Callable[[Exception], object] | None = None,
        *,
        passing: tuple[type[Exception], ...] = (),
    ) -> "Containment":
        """Return a context that reports an exception of its block, then calls ``on_failure``. The exception
        is not raised.

        Errors of the types ``passing`` are expected. They are raised to the caller, and ``on_failure`` is not
        called.
        """
        return Containment(self, work, on_failure, passing)

    def watch(self, task: "asyncio.Task[Any]", work: str) -> None:
        """Report the exception of a task that is not awaited."""

        def report_failure(done: "asyncio.Task[Any]") -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                self.report(work, error)

        task.add_done_callback(report_failure)

    def problem(self) -> str | None:
        """Return a sentence about the last error for the health page, or None if there is no recent error."""
        if not self.count or asyncio.get_running_loop().time() - self._last_s > SHOWN_S:
            return None
        return f"{self.count} unexpected errors, the last while {self._last}; the log has their stacks"


class Containment:
    """See :meth:`UnexpectedErrors.contained`."""

    __slots__ = ("_errors", "_on_failure", "_passing", "_work")

    def __init__(
        self,
        errors: UnexpectedErrors,
        work: str,
        on_failure: Callable[[Exception], object] | None,
        passing: tuple[type[Exception], ...],
    ) -> None:
        self._errors = errors
        self._work = work
        self._on_failure = on_failure
        self._passing = passing

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, self._passing):
            return False
        self._errors.report(self._work, error)
        if self._on_failure is not None:
            self._on_failure(error)
        return True


def _origin(error: BaseException) -> str:
    """Return the line of code that raised the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
