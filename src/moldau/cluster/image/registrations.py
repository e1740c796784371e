"""The registrations of brokers and controllers, including fenced brokers."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from moldau.cluster.image.directories import LOST_DIRECTORY, RESERVED_DIRECTORY_COUNT

FENCE: Final = 1
UNFENCE: Final = -1
"""The values of the field ``fenced`` in a record that changes a registration. In such a record, 0 means that
the state does not change."""
ENTER_CONTROLLED_SHUTDOWN: Final = 1


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """Address of a listener; ``security_protocol`` is Kafka's number (0 is PLAINTEXT)."""

    name: str
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True, order=True)
class SupportedFeature:
    """The range of levels of one feature that a node can work with. The range includes the first and the last
    level."""

    name: str
    min_level: int
    max_level: int

    def supports(self, level: int) -> bool:
        """Whether the range contains ``level``. Level 0 means that the feature is off. Every node whose
        minimum is 0 supports level 0."""
        return self.min_level <= level <= self.max_level


FeatureRanges: TypeAlias = Mapping[str, tuple[int, int]]
"""The lowest and the highest level of each feature that a version of the software supports, by feature name.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A broker. ``epoch`` is the offset of the record that registered this incarnation."""

    broker_id: int
    epoch: int
    incarnation_id: uuid.UUID
    endpoints: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...] = ()
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[uuid.UUID, ...] = ()
    """Ids of the log directories that are online. The tuple is empty if the broker does not report them
    (before KIP-858)."""
    cordoned_log_dirs: tuple[uuid.UUID, ...] = ()
    is_migrating_zk_broker: bool = False

    @property
    def is_active(self) -> bool:
        """Whether the broker may lead and join in-sync sets. It must not be fenced and must not be in a
        controlled shutdown."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_online(self, directory: uuid.UUID) -> bool:
        """Whether a replica in this log directory can be used (KIP-858). A replica can also be used before it
        has an assigned directory."""
        if directory.int < RESERVED_DIRECTORY_COUNT:
            return directory != LOST_DIRECTORY
        return not self.log_dirs or directory in self.log_dirs

    def endpoint(self, listener_name: str) -> Endpoint | None:
        """The endpoint of one listener."""
        return next((endpoint for endpoint in self.endpoints if endpoint.name == listener_name), None)

    def feature(self, name: str) -> SupportedFeature | None:
        """The supported range of one feature."""
        return next((feature for feature in self.features if feature.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRegistration:
    """A controller node (KIP-919)."""

    controller_id: int
    incarnation_id: uuid.UUID
    zk_migration_ready: bool
    endpoints: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...] = ()

    def feature(self, name: str) -> SupportedFeature | None:
        """The supported range of one feature."""
        return next((feature for feature in self.features if feature.name == name), None)
