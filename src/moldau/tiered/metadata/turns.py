"""Iteration over many remote segments, in several iterations of the event loop."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata

__all__ = ["in_turns"]

WORK_A_TURN: Final = 400
"""Number of segments, and of leader epochs in them, that are handled in one iteration of the event loop. This
takes about a millisecond."""


async def in_turns(
    segments: Sequence[RemoteLogSegmentMetadata],
) -> AsyncIterator[Sequence[RemoteLogSegmentMetadata]]:
    """The segments in groups. Other work of the event loop runs between two groups.

    A partition may have very many segments, and a segment may have very many epochs.
    """
    first = work = 0
    for index, segment in enumerate(segments):
        if work >= WORK_A_TURN:
            yield segments[first:index]
            await asyncio.sleep(0)
            first, work = index, 0
        work += 1 + len(segment.leader_epochs)
    if first < len(segments):
        yield segments[first:]
