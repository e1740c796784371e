"""Many remote segments, looked at in turns of the event loop."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata

__all__ = ["in_turns"]

WORK_A_TURN: Final = 400
"""Segments and leader epochs in them that are looked at without a break: about a millisecond."""


async def in_turns(
    segments: Sequence[RemoteLogSegmentMetadata],
) -> AsyncIterator[Sequence[RemoteLogSegmentMetadata]]:
    """The segments in groups, with a turn of the loop between two of them.

    A partition may have very many segments, and a segment very many epochs.
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
