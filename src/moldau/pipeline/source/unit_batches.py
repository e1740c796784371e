"""The batches of a unit, also if the topic is deleted while a task reads it."""

import logging
from collections.abc import Iterator, Sequence

from moldau.client.errors import ToolError
from moldau.pipeline.reading.broker import TopicGoneError
from moldau.pipeline.reading.decoding import FoundBatch
from moldau.pipeline.reading.fetching import fetch_found
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.topic_source import TopicSource

logger = logging.getLogger(__name__)


def batches_of_unit(source: TopicSource, unit: Sequence[OffsetRange]) -> Iterator[FoundBatch]:
    """Read a unit. If the topic is deleted during the read, the result ends with the records that were
    already read. If the options do not allow a loss of records, this raises :class:`ToolError` instead."""
    try:
        yield from fetch_found(source, unit)
    except TopicGoneError as error:
        if not source.may_lose:
            raise ToolError(f"{error} (failOnDataLoss=false skips these records)") from error
        logger.warning("data was lost: %s", error)
