"""The first producer id that was not given to a broker yet."""

from collections.abc import Iterator
from typing import Final

from moldau.cluster.image.changes import ChangedValue
from moldau.cluster.image.parts.part import ImagePart
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message


def _replay(changes: ChangedValue[int], record: r.ProducerIdsRecord) -> None:
    changes.value = record.next_producer_id


def _to_records(next_producer_id: int) -> Iterator[Message]:
    if next_producer_id > 0:
        yield r.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=next_producer_id)


PRODUCER_IDS: Final = ImagePart[int, ChangedValue[int]](
    name="next_producer_id",
    begin=ChangedValue,
    records={r.ProducerIdsRecord: _replay},
    to_records=_to_records,
)
