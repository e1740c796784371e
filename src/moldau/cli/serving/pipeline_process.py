"""The process of jobs that ``moldau dev --pipeline`` starts in addition to its node."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

STOP_TIMEOUT_S: Final = 20.0


def prepared_pipeline(config: Path | None) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Prepare the jobs. Returns a function that starts their process. The function gets a node's address.

    A mistake in the file or a missing package raises :class:`moldau.client.errors.ToolError` at once.
    """
    from moldau.pipeline.requirements import check_requirements

    check_requirements()
    if config is not None:
        from moldau.pipeline.jobs import read_jobs

        read_jobs(str(config))
    return lambda address: _running(str(address), config)


@contextlib.asynccontextmanager
async def _running(bootstrap: str, config: Path | None) -> AsyncIterator[None]:
    """A context in which the process runs. The lines that the process prints go to stderr, because stdout is
    for the output of the node.
    """
    command = [sys.executable, "-m", "moldau", "pipeline", "run", "--bootstrap", bootstrap]
    command += ["--stop-with-parent", *([] if config is None else ["--config", str(config)])]
    process = await asyncio.create_subprocess_exec(*command, stdout=sys.stderr)
    watcher = asyncio.ensure_future(_report_end(process))
    try:
        yield
    finally:
        watcher.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _report_end(process: asyncio.subprocess.Process) -> None:
    """Report that the process has ended. The node continues without it."""
    code = await process.wait()
    print(f"moldau: the pipeline ended with exit code {code}", file=sys.stderr)
