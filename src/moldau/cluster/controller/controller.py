"""The controller. It accepts requests, returns records and responses, and changes state only by replay. Pure.

The driver's contract, which :mod:`.service` implements:

1. Before a leadership begins, call :meth:`Controller.activate` with the image of all committed records.
2. :meth:`Controller.handle` decides. If it returns records, call :meth:`Controller.replay` with these records
   *before* the next request is handled. Append the records to the metadata log as one atomic batch. The next
   decision is made on the state after these records, although they may not be committed yet.
3. Answer a request when its records and all records of earlier decisions are committed.
4. When an append fails or the leadership ends, call :meth:`Controller.activate` again. This drops all
uncommitted records.
"""

from collections.abc import Callable, Sequence
from typing import Final

from moldau.cluster.controller.decided_apis import DECISIONS
from moldau.cluster.decisions import brokers, features
from moldau.cluster.decisions.brokers import BrokerInputs
from moldau.cluster.decisions.ended_processes import EndedProcesses, Suspect
from moldau.cluster.decisions.heartbeats import Heartbeats
from moldau.cluster.decisions.kinds.table import KINDS
from moldau.cluster.decisions.partitions import election_causes
from moldau.cluster.decisions.view import (
    ConfigPolicy,
    ControllerResult,
    ControllerSettings,
    QuorumMembers,
    TopicPolicy,
    View,
)
from moldau.cluster.image.delta import image_of
from moldau.cluster.image.image import EMPTY_IMAGE, METADATA_VERSION_FEATURE, MetadataImage
from moldau.cluster.image.image_records import to_records
from moldau.protocol.records.metadata import FeatureLevelRecord
from moldau.protocol.schema import Message
from moldau.runtime import Entropy, ErrorCode, KafkaError

LEADERS_BALANCED_MAX: Final = 1_000
"""Maximum number of leaderships that are moved by one batch of records."""


class Controller:
    """Makes decisions on an image that includes the controller's own uncommitted decisions."""

    def __init__(
        self,
        settings: ControllerSettings,
        config_policy: ConfigPolicy,
        entropy: Entropy,
        topic_policy: TopicPolicy | None = None,
        members: Callable[[], QuorumMembers] = QuorumMembers,
    ) -> None:
        """``members`` returns the other nodes of the quorum while this node leads the quorum. Any thread may
        call ``members``."""
        self._settings = settings
        self._config_policy = config_policy
        self._entropy = entropy
        self._topic_policy = topic_policy
        self._members = members
        self._heartbeats = Heartbeats(settings.session_timeout_ms)
        self.ended_processes = EndedProcesses(self._heartbeats, settings.first_probed_listener)
        self._image = EMPTY_IMAGE

    @property
    def image(self) -> MetadataImage:
        """The image on which decisions are made: the committed metadata, and the records of decisions that
        are not committed yet."""
        return self._image

    def activate(self, image: MetadataImage, now_ms: int) -> None:
        """Use ``image``, which contains only committed records. Called when a leadership begins, and after an
        append has failed."""
        self._image = image
        self._heartbeats.activate(image, now_ms)
        self.ended_processes.activate()

    def handle(self, request: Message, now_ms: int, next_offset: int) -> ControllerResult:
        """Decide on a request. ``next_offset`` is the offset that the first record will get in the log.

        Raises ``KafkaError`` when a whole request is refused. :func:`error_response` makes the response from
        this error.
        """
        decision = DECISIONS.get(type(request))
        if decision is None:
            raise KafkaError(
                ErrorCode.unsupported_version, f"The controller does not take {type(request).__name__}."
            )
        return decision.decide(self._view(), self._context(now_ms, next_offset), request)

    def bootstrap(self, records: Sequence[Message]) -> Sequence[Message]:
        """The first records of a new cluster; no records when the log already has a metadata version.

        Formatting has written the first metadata of the cluster to a snapshot, which ends before the first
        offset of the log. Other nodes cannot fetch this snapshot, and nodes of Apache Kafka stop if they get
        no metadata version. Therefore the first records of the log contain the metadata version again. A
        node's configuration can enable some kinds of topics, for example diskless topics. The first records
        also contain the feature levels of the enabled kinds. If no config key enables a kind, its feature
        begins at level 0, because nodes of Apache Kafka cannot join a cluster in which this feature has a
        higher level.
        """
        if self._image.metadata_version and self._image.provenance.offset >= 0:
            return ()
        if self._image.metadata_version:
            first = list(to_records(self._image))
        elif any(isinstance(record, FeatureLevelRecord) for record in records):
            first = list(records)
        else:
            first = [*_default_features(), *records]
        for kind in KINDS:
            feature = kind.feature
            is_wanted = kind.enable_key is not None and kind.is_enabled(self._settings)
            if feature and is_wanted and feature.name not in self._image.features:
                first.append(FeatureLevelRecord(name=feature.name, feature_level=feature.max_level))
        return first

    def expire_sessions(self, now_ms: int, next_offset: int) -> Sequence[Message]:
        """Make records that fence one broker whose session has expired. The caller calls again until no
        records are returned."""
        return brokers.fence_expired(self._view(), self._context(now_ms, next_offset))

    def fence_ended(self, suspect: Suspect, now_ms: int, next_offset: int) -> Sequence[Message]:
        """Make records that fence a broker whose listeners refuse connections. Returns no records if the
        suspicion is over."""
        broker = self.ended_processes.confirmed(self._image, suspect)
        if broker is None:
            return ()
        return brokers.fence_ended(self._view(), self._context(now_ms, next_offset), broker)

    @property
    def leader_balance_interval_ms(self) -> int:
        """Interval of :meth:`balance_leaders` in milliseconds; 0 means never."""
        return self._settings.leader_balance_interval_ms

    def balance_leaders(self) -> Sequence[Message]:
        """Make records that give a limited number of leaderships back to the preferred replicas."""
        return election_causes.preferred_changes(self._view(), LEADERS_BALANCED_MAX)

    @property
    def unclean_election_interval_ms(self) -> int:
        """Interval of :meth:`elect_unclean` in milliseconds; 0 means never."""
        return self._settings.unclean_election_interval_ms

    def elect_unclean(self) -> Sequence[Message]:
        """Make records that elect leaders for partitions without a leader. The topic must allow an unclean
        election."""
        return election_causes.unclean_changes(self._view(), LEADERS_BALANCED_MAX)

    @property
    def no_op_interval_ms(self) -> int:
        """Interval of records without content, in milliseconds; 0 means never."""
        return self._settings.no_op_interval_ms

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """Return the time at which the next session may expire, in ms."""
        return self._heartbeats.next_deadline_ms(self._image, now_ms)

    def replay(self, records: Sequence[Message]) -> None:
        """Apply the records of a decision."""
        self._image = image_of(records, self._image)

    def replayed(self, records: Sequence[Message]) -> MetadataImage:
        """The image after these records. This controller is not changed. Any thread may call this method."""
        return image_of(records, self._image)

    def restore(self, image: MetadataImage) -> None:
        """Replace the controller's image by ``image``. After a failed append, the caller passes the image
        before the records of this append. After a replay on another thread, the caller passes the result of
        :meth:`replayed`."""
        self._image = image

    def _view(self) -> View:
        return View(
            image=self._image,
            settings=self._settings,
            configs=self._config_policy,
            entropy=self._entropy,
            topic_policy=self._topic_policy,
            members=self._members,
        )

    def _context(self, now_ms: int, next_offset: int) -> BrokerInputs:
        return BrokerInputs(self._heartbeats, now_ms, next_offset)


def _default_features() -> list[Message]:
    level = features.METADATA_VERSION_LATEST
    first = FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=level)
    return [first, *features.default_features(level)]
