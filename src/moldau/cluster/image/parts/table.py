"""The table of all parts of the image. The delta, snapshots and the controller find in this table how to
handle each record."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, Final

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.parts.client_quotas import CLIENT_QUOTAS
from moldau.cluster.image.parts.configs import CONFIGS
from moldau.cluster.image.parts.features import FEATURES
from moldau.cluster.image.parts.nodes import BROKERS, CONTROLLERS
from moldau.cluster.image.parts.part import ImageChanges, ImagePart, RecordVersions, Replay
from moldau.cluster.image.parts.producer_ids import PRODUCER_IDS
from moldau.cluster.image.parts.security import ACLS, DELEGATION_TOKENS, SCRAM_CREDENTIALS
from moldau.cluster.image.parts.topics import TOPICS
from moldau.cluster.image.registrations import SupportedFeature
from moldau.protocol.api import OWN_API_KEY_MIN
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message

WITHOUT_STATE: Final[frozenset[type[Message]]] = frozenset(
    {
        r.NoOpRecord,
        r.ZkMigrationStateRecord,
        r.BeginTransactionRecord,
        r.EndTransactionRecord,
        r.AbortTransactionRecord,
    }
)
"""Records that change no part: no-op records, records about the state of the ZooKeeper migration, and the
records that begin, end or abort a transaction. Only the publisher uses the records of transactions."""
NO_PARTS: Final = frozenset({"provenance", "own_parts"})
"""Fields of the image that are no parts: its position, and the map that contains the parts without a
field."""

ApplyRecord = Callable[[ImageChanges, Any], None]


class MissingLevelError(Exception):
    """A decision has made a record whose feature has level 0 in the cluster. This is a defect in the code of
    the decision. Such a record must not be written, because nodes of Apache Kafka stop at a record that they
    do not know."""


class PartTable:
    """The parts in the order of a snapshot. For each type of record, the table also has its part, its
    versions and its feature.

    Raises ``ValueError``, which names the code to change, if a row is incomplete, or if a field or record has
    no row.
    """

    def __init__(self, *parts: ImagePart[Any, Any]) -> None:
        self.parts = parts
        self.replays: dict[type, tuple[ImagePart[Any, Any], Replay[Any], tuple[ApplyRecord, ...]]] = {}
        """For each type of record: the part that it changes, the function that replays it in this part, and
        the functions that change other parts."""
        self.versions: dict[type[Message], RecordVersions] = {}
        self.features: dict[type[Message], SupportedFeature] = {}
        for part in parts:
            self._add(part)
        self._check_names()
        self._check_records()

    @property
    def own_features(self) -> tuple[SupportedFeature, ...]:
        """The features of Moldau's own records, without repetition."""
        return tuple(dict.fromkeys(self.features.values()))

    def require_levels(self, records: Iterable[Message], image: MetadataImage) -> None:
        """Raise :class:`MissingLevelError` for a record whose feature has level 0. ``image`` contains the
        changes of the records."""
        for cls in self.features.keys() & {type(record) for record in records}:
            name = self.features[cls].name
            if not image.features.get(name, 0):
                raise MissingLevelError(f"a decision has made a {cls.__name__}, and {name} is 0")

    def records(self, image: MetadataImage) -> Iterator[Message]:
        """The records of all parts."""
        for part in self.parts:
            yield from part.to_records(part.of(image))

    def _add(self, part: ImagePart[Any, Any]) -> None:
        for cls, replay in part.records.items():
            if cls in self.replays:
                raise ValueError(f"{cls.__name__} belongs to {part.name} and {self.replays[cls][0].name}")
            if (cls.API_KEY >= OWN_API_KEY_MIN) != (cls in part.features):
                raise ValueError(
                    f"{cls.__name__} of {part.name}: records of Moldau have a number from {OWN_API_KEY_MIN}"
                    " on and a feature, Kafka's records have none"
                )
            effects = tuple(each.effects[cls] for each in self.parts if cls in each.effects)
            self.replays[cls] = (part, replay, effects)
            if cls not in r.RECORDS.classes:
                r.RECORDS.register(cls)
        self.versions.update(part.versions)
        self.features.update(part.features)

    def _check_names(self) -> None:
        names = [part.name for part in self.parts]
        declared = {field.name for field in fields(MetadataImage)} - NO_PARTS
        if len(names) != len(set(names)):
            raise ValueError(f"two parts of the image have one name: {sorted(names)}")
        if missing := declared - set(names):
            raise ValueError(
                f"add a row for {sorted(missing)} of MetadataImage (cluster/image/parts/table.py)"
            )

    def _check_records(self) -> None:
        for cls in r.RECORDS.classes:
            if cls not in self.replays and cls not in WITHOUT_STATE:
                raise ValueError(f"no part of the image replays {cls.__name__} (cluster/image/parts/)")
        for part in self.parts:
            declared = {*part.versions, *part.features} - set(part.records)
            if declared or not set(part.effects) <= set(self.replays):
                raise ValueError(f"the row of {part.name} names a record that it does not replay")


PARTS: Final = PartTable(
    # The feature levels come first, because metadata.version determines the versions of the other records.
    FEATURES,
    BROKERS,
    CONTROLLERS,
    TOPICS,
    CONFIGS,
    CLIENT_QUOTAS,
    PRODUCER_IDS,
    ACLS,
    SCRAM_CREDENTIALS,
    DELEGATION_TOKENS,
)
METADATA_RECORDS: Final = r.RECORDS
"""All metadata records, including the records that the modules of parts declare."""
