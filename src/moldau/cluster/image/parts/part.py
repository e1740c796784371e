"""One part of the metadata image, and the changes of all parts since an image."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from moldau.cluster.image.changes import Changes, PartChanges
from moldau.cluster.image.image import EMPTY_IMAGE, MetadataImage
from moldau.cluster.image.persistent_map import PersistentMap
from moldau.cluster.image.registrations import SupportedFeature
from moldau.protocol.schema import Message

T = TypeVar("T")
C = TypeVar("C", bound=PartChanges[Any])
K = TypeVar("K")
V = TypeVar("V")

Replay = Callable[[C, Any], None]
"""Applies a record to the changes of its part. Raises :class:`MetadataError` when the record contradicts the
changes."""
RecordVersions = tuple[tuple[int, int], ...]
"""Pairs of two numbers: a level of metadata.version, and the version in which a record is written from this
level on. The newest pair comes first."""

_NO_ENTRIES: PersistentMap[Any, Any] = PersistentMap()


@dataclass(frozen=True, eq=False, kw_only=True)
class ImagePart(Generic[T, C]):
    """A field of :class:`MetadataImage`, its records, and the functions that replay and make these records.

    ``T`` is the type of the field, ``C`` the type of its changes.
    """

    name: str
    """The name of the field."""
    begin: Callable[[T], C]
    """Makes an object that will collect the changes of a value. At first it has no changes."""
    records: Mapping[type[Message], Replay[C]]
    """The records that change the part. Each type of record belongs to one part."""
    to_records: Callable[[T], Iterable[Message]]
    """Records that build the value from an empty image, in the same order on every node."""
    effects: Mapping[type[Message], Callable[["ImageChanges", Any], None]] = field(default_factory=dict)
    """Functions for records that belong to another part but also change this part. Each function is called
    before its record changes the other part."""
    versions: Mapping[type[Message], RecordVersions] = field(default_factory=dict)
    """For each record whose version depends on metadata.version, its versions."""
    features: Mapping[type[Message], SupportedFeature] = field(default_factory=dict)
    """For each of Moldau's own records, its feature. Kafka's records have no feature."""

    def of(self, image: MetadataImage) -> T:
        """The part's value in an image."""
        return cast(T, getattr(image, self.name))

    def written(self, image: MetadataImage, fields: dict[str, Any], value: T) -> None:
        """Add the new value of the part to ``fields``. These fields will replace fields of ``image``."""
        fields[self.name] = value


class OwnPart(ImagePart[PersistentMap[K, V], Changes[K, V]]):
    """A part of the image that Kafka does not have. Its value is a map of entries, and :class:`MetadataImage`
    has no own field for it. All records of the part require the same feature. While the level of this feature
    is 0, the log must not contain such records, because nodes of Apache Kafka stop at a record that they do
    not know.
    """

    def __init__(
        self,
        *,
        name: str,
        feature: SupportedFeature,
        records: Mapping[type[Message], Replay[Changes[K, V]]],
        to_records: Callable[[PersistentMap[K, V]], Iterable[Message]],
    ) -> None:
        super().__init__(
            name=name,
            begin=Changes,
            records=records,
            to_records=to_records,
            features=dict.fromkeys(records, feature),
        )

    def of(self, image: MetadataImage) -> PersistentMap[K, V]:
        return image.own_parts.get(self.name, _NO_ENTRIES)

    def written(self, image: MetadataImage, fields: dict[str, Any], value: PersistentMap[K, V]) -> None:
        others = fields.get("own_parts", image.own_parts)
        kept = {name: each for name, each in others.items() if name != self.name}
        # An empty map is left out, because images are equal when their metadata are equal.
        fields["own_parts"] = {**kept, self.name: value} if value else kept


class ImageChanges:
    """The changes of all parts since ``image``. The object with a part's changes is created when it is first
    needed."""

    def __init__(self, image: MetadataImage = EMPTY_IMAGE) -> None:
        self.image = image
        self._changes: dict[ImagePart[Any, Any], Any] = {}

    def changes(self, part: ImagePart[Any, C]) -> C:
        """The changes of one part."""
        changes = self._changes.get(part)
        if changes is None:
            changes = self._changes[part] = part.begin(part.of(self.image))
        return cast(C, changes)
