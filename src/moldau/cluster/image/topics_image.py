"""All topics, by name and by id, and numbers that are computed from the topics."""

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress
from operator import is_not
from typing import TypeVar

from moldau.cluster.image.partition import NO_OWNER, PartitionRegistration
from moldau.cluster.image.persistent_map import PersistentMap

K = TypeVar("K", int, tuple[str, int])


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; partition ``n`` is ``partitions[n]``."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionRegistration, ...]
    kind: str = ""
    """The mark of the topic's kind in the metadata. It never changes, and is empty for kinds without a mark.
    """

    @property
    def has_owners(self) -> bool:
        """Whether partitions of an internal topic own the partitions of this topic. This is fixed at
        creation."""
        return bool(self.partitions) and self.partitions[0].owner != NO_OWNER


def collision_key(name: str) -> str:
    """The name with ``.`` replaced by ``_``. If two topics had equal keys, their metric names would be
    equal."""
    return name.replace(".", "_")


@dataclass(frozen=True, slots=True)
class TopicsImage:
    """All topics. No two topics have the same collision key."""

    by_name: PersistentMap[str, Topic] = field(default_factory=PersistentMap)
    # The keys are the ids as integers. A comparison of UUID objects would run Python code at every step of a
    # search.
    _names_by_id: PersistentMap[int, str] = field(default_factory=PersistentMap)
    _names_by_collision_key: PersistentMap[str, str] = field(default_factory=PersistentMap, compare=False)
    owner_load: PersistentMap[tuple[str, int], int] = field(default_factory=PersistentMap, compare=False)
    """For each owner, the number of partitions that it owns. The key is a pair: the mark of the kind, and the
    owner."""
    replica_load: PersistentMap[int, int] = field(default_factory=PersistentMap, compare=False)
    """For each broker id, the number of partitions that have a replica on this broker."""

    def __len__(self) -> int:
        return len(self.by_name)

    def __iter__(self) -> Iterator[Topic]:
        return self.by_name.values()

    def get(self, name: str) -> Topic | None:
        """The topic of this name."""
        return self.by_name.get(name)

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """The name of the topic with an id."""
        topic = self.get_by_id(topic_id)
        return None if topic is None else topic.name

    def get_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """The topic of this id."""
        name = self._names_by_id.get(topic_id.int)
        return None if name is None else self.by_name.get(name)

    def partition(self, topic_id: uuid.UUID, index: int) -> PartitionRegistration | None:
        """Return one partition, or ``None`` when the topic or the partition is unknown."""
        topic = self.get_by_id(topic_id)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def colliding_name(self, name: str) -> str | None:
        """Return the existing topic with the same collision key as ``name``. It may be the topic ``name``
        itself."""
        return self._names_by_collision_key.get(collision_key(name))

    def updated(self, changed: Collection[Topic], removed: Collection[Topic]) -> "TopicsImage":
        """Return these topics after a change. The ``changed`` topics are added, or replace topics with the
        same names.
        """
        if not changed and not removed:
            return self
        names = {topic.name: topic for topic in changed}
        gone = [topic for topic in removed if topic.name not in names]
        kept = {topic.topic_id.int for topic in changed}
        # Most changes concern existing topics. Their names and ids do not change, so their entries in the
        # lookup maps stay the same.
        new = [topic for topic in changed if self._names_by_id.get(topic.topic_id.int) != topic.name]
        keys = {collision_key(topic.name): topic.name for topic in new}
        return replace(
            self,
            by_name=self.by_name.updated(names, [topic.name for topic in gone]),
            _names_by_id=self._names_by_id.updated(
                {topic.topic_id.int: topic.name for topic in new},
                [topic.topic_id.int for topic in removed if topic.topic_id.int not in kept],
            ),
            _names_by_collision_key=self._names_by_collision_key.updated(
                keys, [key for key in (collision_key(topic.name) for topic in gone) if key not in keys]
            ),
            owner_load=_counted(self.owner_load, self._owner_changes(changed, removed)),
            replica_load=_counted(self.replica_load, self._replica_changes(changed, removed)),
        )

    def _owner_changes(
        self, changed: Collection[Topic], removed: Collection[Topic]
    ) -> dict[tuple[str, int], int]:
        differences: dict[tuple[str, int], int] = {}
        before = [topic for topic in removed if topic.has_owners]
        gone = {topic.topic_id for topic in removed}
        for topic in changed:
            old = self.get_by_id(topic.topic_id)
            if old is not None and old.has_owners and old.topic_id not in gone:
                before.append(old)
        for sign, topics in ((-1, before), (1, [topic for topic in changed if topic.has_owners])):
            for topic in topics:
                for partition in topic.partitions:
                    key = (topic.kind, partition.owner)
                    differences[key] = differences.get(key, 0) + sign
        return differences

    def _replica_changes(self, changed: Collection[Topic], removed: Collection[Topic]) -> dict[int, int]:
        less: Counter[int] = Counter()
        more: Counter[int] = Counter()
        gone = {topic.topic_id.int for topic in removed}
        for topic in removed:
            less.update(_replicas(topic.partitions))
        for topic in changed:
            old = None if topic.topic_id.int in gone else self.get_by_id(topic.topic_id)
            before = () if old is None else old.partitions
            # Most partitions of a changed topic did not change. They are the same objects as before and are
            # skipped here.
            for was, is_now in compress(
                zip(before, topic.partitions, strict=False), map(is_not, before, topic.partitions)
            ):
                less.update(was.replicas)
                more.update(is_now.replicas)
            less.update(_replicas(before[len(topic.partitions) :]))
            more.update(_replicas(topic.partitions[len(before) :]))
        return {broker_id: more[broker_id] - less[broker_id] for broker_id in {**less, **more}}


def _replicas(partitions: Sequence[PartitionRegistration]) -> Iterable[int]:
    return chain.from_iterable(partition.replicas for partition in partitions)


def _counted(load: PersistentMap[K, int], differences: Mapping[K, int]) -> PersistentMap[K, int]:
    counts = {key: load.get(key, 0) + difference for key, difference in differences.items() if difference}
    return load.updated(
        {key: count for key, count in counts.items() if count > 0},
        [key for key, count in counts.items() if count <= 0],
    )
