"""The entry point. It starts fast, handles signals from the first moment, and prints failures.

After a failure it prints a line on stderr and no traceback, and the exit code is 1. After wrong usage the
exit code is 2.
"""

import gc
import os
import signal
import sys
from types import FrameType

from moldau.cli.commands import COMMANDS
from moldau.cli.errors import one_line
from moldau.client.errors import ToolError

INTERRUPTED = 130
TRACEBACK_VARIABLE = "MOLDAU_TRACEBACK"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line. Returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if arguments is None and given[:1] and given[0] in COMMANDS and COMMANDS[given[0]].serves:
        # Importing the code of a node takes some time. A signal during that time must also stop the process.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _leave)
        # During the import, garbage collections would visit the classes and functions of 800 modules several
        # times. This would take a seventh of the time of the import. ``keep_imported`` enables garbage
        # collection again.
        gc.disable()
    if arguments is None:
        # If Hypothesis is installed, kio registers strategies with it. This would take 0.1 s in every
        # command.
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
        # The process that reads stdout has ended. Python flushes stdout at exit, and must not print a second
        # error then.
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
    """Flush the output, and return the exit code. If the pipe is closed, the command has not failed."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more when it ends, and would print an error then.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return code


def _explained(error: Exception) -> str:
    from moldau.runtime.errors import KafkaError

    if isinstance(error, KafkaError | OSError):
        return one_line(error)
    # All other exceptions are bugs in Moldau and not problems of the environment.
    return f"{type(error).__name__}: {one_line(error)} ({TRACEBACK_VARIABLE}=1 shows where)"


def _complain(reason: str) -> int:
    print(f"moldau: {reason}", file=sys.stderr)
    return 1


def _leave(number: int, frame: FrameType | None) -> None:
    # During imports, Python may be in a finalizer, or in the callback of a weak reference. If this handler
    # raised an exception there, the exception would be lost. The node would then start, and a second signal
    # would not stop it. The process can end here, because no part of the node runs yet.
    os._exit(0)
