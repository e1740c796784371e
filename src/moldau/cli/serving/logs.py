"""Logging of a node. It writes JSON lines for programs, and short lines of text on a terminal."""

import json
import logging
import sys
from typing import Any, Final

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Writes a record as a JSON object: time (ms since the epoch), level, logger, message and the fields of
    ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update(extra_of(record))
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class LineFormatter(logging.Formatter):
    """Writes a record as a short line for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        extra = " ".join(f"{key}={value}" for key, value in extra_of(record).items())
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {record.getMessage()}"
        line = f"{line} [{extra}]" if extra else line
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the ``extra`` fields that the caller gave."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def configure(level: str, *, as_json: bool | None = None) -> None:
    """Log to stderr, as JSON if stderr is not a terminal."""
    handler = logging.StreamHandler(sys.stderr)
    use_json = not sys.stderr.isatty() if as_json is None else as_json
    handler.setFormatter(JsonFormatter() if use_json else LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
