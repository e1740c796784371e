"""A command serves a node until it gets a signal to stop."""

import asyncio
import gc

import pytest

from moldau.cli.errors import CommandError
from moldau.cli.serving import serve


def test_collections_are_kept_short_while_a_node_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node creates most of its objects at its start, so ``keep_collections_short`` must run during the
    start."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def keep() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    class Node:
        async def start(self) -> None:
            await begun.wait()
            raise OSError("it does not start")

    async def main() -> None:
        with pytest.raises(CommandError, match="it does not start"):
            await asyncio.wait_for(serve._serve(Node(), None, stop_with_parent=False), 60)  # type: ignore[arg-type]
        await ended.wait()

    monkeypatch.setattr(serve, "keep_collections_short", keep)
    asyncio.run(main())


def test_collections_begin_when_the_imports_are_done() -> None:
    """The command line switches garbage collections off while it imports the code of a node. Garbage
    collections must be on again when the event loop runs."""

    async def are_enabled() -> bool:
        return gc.isenabled()

    gc.disable()
    try:
        assert serve.run_on_loop(are_enabled())
    finally:
        gc.enable()
        gc.unfreeze()
