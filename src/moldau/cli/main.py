"""The entry point: starts fast, takes signals from the first moment, and shows how failures look.

An error is one line on stderr and exit code 1, never a traceback; a mistake in usage is exit code 2.
"""

import os
import signal
import sys
from types import FrameType

from moldau.cli.errors import one_line
from moldau.client.errors import ToolError

SERVING_COMMANDS = ("dev", "node")
INTERRUPTED = 130
TRACEBACK_VARIABLE = "MOLDAU_TRACEBACK"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if arguments is None and given[:1] and given[0] in SERVING_COMMANDS:
        # Importing a node takes a while: a signal in that time is a request to stop like any other.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _leave)
    if arguments is None:
        # kio registers strategies where Hypothesis is installed, which costs every command 0.1 s.
        sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    try:
        from moldau.cli.app import command

        try:
            command()(given, prog_name="moldau")
        except SystemExit as leaving:
            return _flushed(leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has gone; a second complaint when stdout is flushed at exit helps nobody.
        sys.stdout = None
        return 1
    except ToolError as error:
        return _complain(one_line(error))
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        return _complain(_explained(error))
    return _flushed(0)


def _flushed(code: int) -> int:
    """The exit code, when the output is written: a reader that has gone is no failure of the command."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more when it ends, and would complain then.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return code


def _explained(error: Exception) -> str:
    from moldau.runtime.errors import KafkaError

    if isinstance(error, KafkaError | OSError):
        return one_line(error)
    # A mistake of ours rather than something about the world.
    return f"{type(error).__name__}: {one_line(error)} ({TRACEBACK_VARIABLE}=1 shows where)"


def _complain(reason: str) -> int:
    print(f"moldau: {reason}", file=sys.stderr)
    return 1


def _leave(number: int, frame: FrameType | None) -> None:
    # An exception is lost where Python happens to be in a finalizer, or in the callback of a weak reference,
    # which imports have: the node would start, and nobody would ask it to stop again. Nothing has begun yet.
    os._exit(0)
