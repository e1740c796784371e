"""Combines frequent log lines of one kind into one line a second. The line has a count and a few names."""

import asyncio
import logging
from typing import Final

GATHERED_S: Final = 1.0
NAMES_SHOWN: Final = 3


class GatheredLines:
    """One log line for many events of one kind. Use it on the event loop."""

    def __init__(self, logger: logging.Logger, level: int, text: str) -> None:
        """``text`` is a format with three values: the count (``%d``), some names (``%s``) and the reason of
        the first event (``%s``)."""
        self._logger = logger
        self._level = level
        self._text = text
        self._names: list[str] = []
        self._count = 0
        self._reason = ""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, name: str, reason: str) -> None:
        """Add an event to the next log line."""
        if not self._count:
            self._reason = reason
            self._timer = asyncio.get_running_loop().call_later(GATHERED_S, self.flush)
        self._count += 1
        if len(self._names) < NAMES_SHOWN:
            self._names.append(name)

    def flush(self) -> None:
        """Log the collected events now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._count:
            return
        names = ", ".join(self._names) + (", ..." if self._count > len(self._names) else "")
        self._logger.log(self._level, self._text, self._count, names, self._reason)
        self._names, self._count = [], 0
