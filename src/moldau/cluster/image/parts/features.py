"""Finalized feature levels (KIP-584)."""

from collections.abc import Iterator
from typing import Final

from moldau.cluster.image.changes import Changes
from moldau.cluster.image.image import METADATA_VERSION_FEATURE, FeatureLevel
from moldau.cluster.image.parts.part import ImagePart
from moldau.cluster.image.persistent_map import PersistentMap
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message


def _replay(changes: Changes[str, FeatureLevel], record: r.FeatureLevelRecord) -> None:
    if record.feature_level == 0:
        changes.remove(record.name)
    else:
        changes.put(record.name, FeatureLevel(record.feature_level))


def _to_records(features: PersistentMap[str, FeatureLevel]) -> Iterator[Message]:
    levels = sorted(features.items(), key=lambda item: (item[0] != METADATA_VERSION_FEATURE, item[0]))
    for name, level in levels:
        yield r.FeatureLevelRecord(name=name, feature_level=level)


FEATURES: Final = ImagePart[PersistentMap[str, FeatureLevel], Changes[str, FeatureLevel]](
    name="features",
    begin=Changes,
    records={r.FeatureLevelRecord: _replay},
    to_records=_to_records,
)
