"""The properties of a topic that affect changes of its partitions. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from moldau.cluster.decisions.kinds.kind import TopicKind
from moldau.cluster.decisions.kinds.table import CLASSIC, kind_of
from moldau.cluster.decisions.partitions.placement import default_directory
from moldau.cluster.decisions.view import View
from moldau.cluster.image.image import ELIGIBLE_LEADER_REPLICAS_FEATURE, ResourceType
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import DECISIVE_TOPICS

MIN_IN_SYNC_REPLICAS = "min.insync.replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """The properties of a topic that affect changes of its partitions."""

    can_lead: Callable[[int, UUID], bool]
    """Whether a broker may lead with the replica that is in one of its log directories."""
    default_directory: Callable[[int], UUID]
    """The log directory of a broker's new replica, if the controller knows it (KIP-858)."""
    min_in_sync: int = 0
    """``min.insync.replicas`` if eligible leader replicas are recorded (KIP-966); otherwise 0."""
    kind: TopicKind = CLASSIC
    may_lose: bool = True
    """Whether the last known leader may be elected when no replica is complete. This leader may lack records.
    """

    @property
    def keeps_eligible(self) -> bool:
        """Whether an in-sync set may become empty. This is allowed only if the metadata store the eligible
        leader replicas, which are the complete replicas outside the in-sync set."""
        return self.min_in_sync > 0


def keeps_eligible(view: View) -> bool:
    """Whether the cluster has the feature of eligible leader replicas."""
    return view.image.features.get(ELIGIBLE_LEADER_REPLICAS_FEATURE, 0) > 0


def rules_of(view: View, topic: Topic) -> TopicRules:
    """Return the rules of a topic according to the metadata of the view."""
    kind = kind_of(topic)
    has_eligible = keeps_eligible(view) and kind.replicas_hold_data
    return TopicRules(
        can_lead=view.can_use,
        default_directory=lambda broker_id: default_directory(view.image, broker_id),
        min_in_sync=min_in_sync(view, topic.name) if has_eligible else 0,
        kind=kind,
        may_lose=topic.name not in DECISIVE_TOPICS,
    )


def min_in_sync(view: View, name: str) -> int:
    """``min.insync.replicas`` of a topic."""
    value = view.image.config(ResourceType.TOPIC, name).get(MIN_IN_SYNC_REPLICAS)
    if value is None:
        value = view.configs.default(ResourceType.TOPIC, MIN_IN_SYNC_REPLICAS)
    return int(value or 1)
