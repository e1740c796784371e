"""Quotas of clients. No broker applies them yet."""

from collections.abc import Iterator, Mapping
from typing import Final

from moldau.cluster.image.changes import Changes
from moldau.cluster.image.image import QuotaEntity, quota_key
from moldau.cluster.image.parts.part import ImagePart
from moldau.cluster.image.persistent_map import PersistentMap
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message

Quota = tuple[QuotaEntity, Mapping[str, float]]


def _replay(changes: Changes[str, Quota], record: r.ClientQuotaRecord) -> None:
    entity = tuple(sorted(((data.entity_type, data.entity_name) for data in record.entity), key=_entity_type))
    key = quota_key(entity)
    entry = changes.get(key)
    values = dict(entry[1]) if entry is not None else {}
    if record.remove:
        values.pop(record.key, None)
    else:
        values[record.key] = record.value
    if values:
        changes.put(key, (entity, values))
    else:
        changes.remove(key)


def _entity_type(pair: tuple[str, str | None]) -> str:
    return pair[0]


def _to_records(quotas: PersistentMap[str, Quota]) -> Iterator[Message]:
    for entity, values in quotas.values():
        for key in sorted(values):
            yield r.ClientQuotaRecord(
                entity=[r.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                key=key,
                value=values[key],
                remove=False,
            )


CLIENT_QUOTAS: Final = ImagePart[PersistentMap[str, Quota], Changes[str, Quota]](
    name="client_quotas",
    begin=Changes,
    records={r.ClientQuotaRecord: _replay},
    to_records=_to_records,
)
