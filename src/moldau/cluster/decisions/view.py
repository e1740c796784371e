"""The input of the controller's decisions, and their result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from uuid import UUID

from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.cluster.image.registrations import SupportedFeature
from moldau.config.key_fields import from_key
from moldau.protocol.schema import Message
from moldau.runtime import Entropy


class DescribedConfig(NamedTuple):
    """One effective config of a new topic, as in the CreateTopics response (KIP-525)."""

    name: str
    value: str | None
    read_only: bool
    source: int
    is_sensitive: bool


class ConfigPolicy(Protocol):
    """The operations on config keys and values that the controller's decisions need."""

    def validate(self, resource_type: ResourceType, name: str, values: Mapping[str, str]) -> None:
        """Check all values of a resource after a change. Raises ``KafkaError(invalid_config)``."""
        ...

    def is_list(self, resource_type: ResourceType, key: str) -> bool:
        """Whether the value of this key is a list. APPEND and SUBTRACT are allowed only for lists."""
        ...

    def default(self, resource_type: ResourceType, key: str) -> str | None:
        """Return the value of a key that is not set on the resource; ``None`` for an unknown key."""
        ...

    def describe_topic(self, overrides: Mapping[str, str]) -> Sequence[DescribedConfig]:
        """Return all effective configs of a topic with these overrides."""
        ...


class TopicPolicy(Protocol):
    """The operator's own rules for new topics, as in Kafka (``create.topic.policy.class.name``)."""

    def check(
        self, name: str, partition_count: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        """Check a new topic. Raises ``KafkaError(policy_violation)``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The settings of the node on which decisions depend, with Kafka's defaults.

    The function ``controller_settings`` (``server/settings.py``) makes this object. If a field is declared
    with ``from_key``, this function sets it from the config key, and needs no own code for the field.
    """

    cluster_id: str
    supported_features: tuple[SupportedFeature, ...] = ()
    default_partition_count: int = from_key("num.partitions", 1)
    default_replication_factor: int = from_key("default.replication.factor", 1)
    partitions_per_request_max: int = 10_000
    partitions_per_broker_max: int = from_key("max.broker.partitions", 100_000)
    session_timeout_ms: int = from_key("broker.session.timeout.ms", 9_000)
    first_probed_listener: str = ""
    """Name of the listener that is probed first when a broker's process may have ended."""
    leader_balance_interval_ms: int = 0
    """Interval at which leaderships return to preferred replicas; 0 means never."""
    unclean_election_interval_ms: int = from_key("unclean.leader.election.interval.ms", 0)
    """Interval of unclean elections for leaderless partitions whose topics allow them; 0 means never."""
    no_op_interval_ms: int = from_key("metadata.max.idle.interval.ms", 0)
    """Interval of records without content. From such a record a node learns how far its replay of the
    metadata log lags (KIP-835). The interval 0 means never."""
    delete_topic_enable: bool = from_key("delete.topic.enable", True)
    enabled_kinds: frozenset[str] = frozenset()
    """Names of the kinds of topics (``cluster/decisions/kinds``) that the node's configuration enables."""


@dataclass(frozen=True, slots=True)
class QuorumMembers:
    """The ids of the other nodes in the metadata quorum. Observers are all nodes that fetch now, including
    brokers.

    A node that will soon become a voter is counted as a voter.
    """

    voters: frozenset[int] = frozenset()
    observers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The metadata image, and the other inputs that all decisions need."""

    image: MetadataImage
    settings: ControllerSettings
    configs: ConfigPolicy
    entropy: Entropy
    topic_policy: TopicPolicy | None = None
    members: Callable[[], QuorumMembers] = QuorumMembers
    """Returns the members of the quorum. Any thread may call it."""

    def is_active(self, broker_id: int) -> bool:
        """Whether a broker may lead partitions and join in-sync sets."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def can_use(self, broker_id: int, directory: UUID) -> bool:
        """Whether a broker's replica in this log directory may lead and be in sync."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.is_active and broker.has_online(directory)


@dataclass(frozen=True, slots=True)
class ControllerResult:
    """Records to commit together, and the response, which is sent after the commit. Without records the
    response is sent immediately."""

    response: Message
    records: Sequence[Message] = field(default=())
    warning: str = ""
    """A sentence for the operator, which is logged when the records are appended."""
