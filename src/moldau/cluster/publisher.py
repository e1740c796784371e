"""Makes metadata images from committed batches, and passes the images to the parts of the node."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

from moldau.cluster.errors import MetadataError
from moldau.cluster.image.delta import MetadataDelta, delta_between
from moldau.cluster.image.image import (
    EMPTY_IMAGE,
    METADATA_VERSION_FEATURE,
    OWN_PREFIX,
    MetadataImage,
    Provenance,
)
from moldau.cluster.image.registrations import FeatureRanges
from moldau.cluster.metadata_log import RECORDS_A_TURN, MetadataBatch, Value
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.protocol.records.metadata import (
    RECORDS,
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from moldau.protocol.schema import Message
from moldau.storage.snapshots.replicated_log import LogPosition
from moldau.storage.snapshots.snapshot import snapshot_file

logger = logging.getLogger(__name__)

RECORDS_A_STEP: Final = 500
"""Number of records that are decoded and replayed in one step. A step takes about 5 ms."""


class ImageSubscriber(Protocol):
    """A part of the node that reacts to changes of the metadata."""

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """React to a new image. ``delta`` is the difference from the image of the previous call. In the first
        call it is the difference from an empty image."""
        ...


class MetadataPublisher:
    """A listener of the metadata log. All work is done in the call that passes the batches, or in the steps
    that the call returns. Therefore the image contains the committed records directly after a commit.

    ``on_fault`` is called once when this node cannot follow the log any further. The node must then stop,
    because it would serve old metadata forever.
    """

    def __init__(
        self,
        on_fault: Callable[[MetadataError], None],
        supported: FeatureRanges | None = None,
        *,
        folder: str = CLUSTER_METADATA_FOLDER,
    ) -> None:
        """``supported`` contains the feature levels that :meth:`check_levels` allows. If it is ``None``, all
        levels are allowed. ``folder`` is the folder of the log, for errors."""
        self._folder = folder
        self._image = EMPTY_IMAGE
        self._subscribers: list[ImageSubscriber] = []
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._transaction: list[Message] | None = None
        self._on_fault = on_fault
        self._supported = supported
        self._checks_levels = False
        self._faulty = False
        self.leader_id = -1
        self.leader_epoch = -1

    @property
    def image(self) -> MetadataImage:
        """The image of all committed records that this node has applied."""
        return self._image

    @property
    def is_faulty(self) -> bool:
        """Whether this node has failed to apply a record of the log. Its image is then incomplete, and no
        decision may use it."""
        return self._faulty

    @property
    def is_understood(self) -> bool:
        """Whether this version of the software supports all feature levels in the image."""
        return _unsupported(self._image, self._supported) is None

    def check_levels(self) -> str | None:
        """Check the levels of Moldau's own features and of ``metadata.version``, now and in each later image.

        Call this method when the image is current, because an older image may contain a level that was
        lowered later. Returns the reason if a level is not supported. The reason is also passed to
        ``on_fault``, because records at such a level may have a meaning that this version does not know.
        """
        self._checks_levels = True
        reason = _unsupported(self._image, self._supported)
        if reason is not None and not self._faulty:
            self._fail(reason)
        return reason

    def subscribe(self, subscriber: ImageSubscriber) -> None:
        """Call ``subscriber`` now if there already is an image, and again after every change. Subscribers are
        called in the order of subscription.
        """
        self._subscribers.append(subscriber)
        if self._image is not EMPTY_IMAGE:
            self._notify(subscriber, delta_between(EMPTY_IMAGE, self._image))

    def unsubscribe(self, subscriber: ImageSubscriber) -> None:
        """Stop calling ``subscriber``. A call for an unknown subscriber has no effect."""
        self._subscribers = [each for each in self._subscribers if each is not subscriber]

    def until(self, condition: Callable[[], bool]) -> asyncio.Future[None]:
        """Return a future that is done when ``condition`` is true. The condition is checked after each new
        image."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if condition():
            future.set_result(None)
        else:
            self._waiting.append((condition, future))
        return future

    def on_leader(self, leader_id: int, epoch: int) -> None:
        self.leader_id, self.leader_epoch = leader_id, epoch

    def on_snapshot(
        self, end_offset: int, epoch: int, timestamp_ms: int, values: Iterable[Value]
    ) -> Iterator[None]:
        """Load a snapshot in steps. The old image stays in use until the last step."""
        if self._faulty:
            return
        self._transaction = None
        delta = MetadataDelta()
        count = 0
        try:
            for record in _decoded(values):
                delta.replay(record)
                count += 1
                if count % RECORDS_A_STEP == 0:
                    yield
            image = delta.apply(Provenance(end_offset - 1, epoch, timestamp_ms))
            self._require_levels(image)
        except (MetadataError, ProtocolError) as error:
            name = snapshot_file(LogPosition(end_offset, epoch))
            self._fail(
                f"{self._folder}/{name} cannot be loaded as a snapshot of the metadata: {error}. Restore the"
                " folder from a backup, or see 'Damaged files' in docs/operations.md."
            )
            return
        if count > RECORDS_A_STEP:
            yield
        self._publish(delta_between(self._image, image), image)

    def on_commit(self, batches: Sequence[MetadataBatch]) -> Iterator[None] | None:
        if self._faulty or not batches:
            return None
        steps = self._apply(batches)
        if sum(len(batch.values) for batch in batches) > RECORDS_A_TURN:
            return steps
        for _ in steps:
            pass
        return None

    def _apply(self, batches: Sequence[MetadataBatch]) -> Iterator[None]:
        delta = MetadataDelta(self._image)
        count = 0
        for batch in batches:
            try:
                for record in _decoded(batch.values):
                    self._replay(delta, record)
                    count += 1
                    if count % RECORDS_A_STEP == 0:
                        yield
            except (MetadataError, ProtocolError) as error:
                self._fail(self._unfollowable(batch, error))
                return
        last = batches[-1]
        image = delta.apply(Provenance(last.last_offset, last.epoch, last.timestamp_ms))
        try:
            self._require_levels(image)
        except MetadataError as error:
            self._fail(self._unfollowable(last, error))
            return
        if count > RECORDS_A_STEP:
            yield
        self._publish(delta, image)

    def _replay(self, delta: MetadataDelta, record: Message) -> None:
        """Apply a record. The records of a transaction become visible together, or none of them becomes
        visible (KIP-868)."""
        match record:
            case BeginTransactionRecord():
                self._transaction = []
            case AbortTransactionRecord():
                self._transaction = None
            case EndTransactionRecord():
                delta.replay_all(self._transaction or ())
                self._transaction = None
            case _ if self._transaction is not None:
                self._transaction.append(record)
            case _:
                delta.replay(record)

    def _require_levels(self, image: MetadataImage) -> None:
        """Raise ``MetadataError`` for a level that is not supported."""
        if not self._checks_levels or image.features is self._image.features:
            return
        reason = _unsupported(image, self._supported)
        if reason is not None:
            raise MetadataError(reason)

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._image = image
        for subscriber in self._subscribers:
            self._notify(subscriber, delta)
        waiting, self._waiting = self._waiting, []
        for condition, future in waiting:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            else:
                self._waiting.append((condition, future))

    def _notify(self, subscriber: ImageSubscriber, delta: MetadataDelta) -> None:
        try:
            subscriber.on_image(delta, self._image)
        except Exception:
            # If one subscriber raises an exception, the other subscribers must still get the new metadata.
            logger.exception(
                "%s failed on metadata offset %d", type(subscriber).__name__, self._image.provenance.offset
            )

    def _unfollowable(self, batch: MetadataBatch, error: Exception) -> str:
        where = f"{self._folder}: the metadata log cannot be followed"
        return f"{where} at offset {batch.base_offset}: {error}"

    def _fail(self, reason: str) -> None:
        self._faulty = True
        self._on_fault(MetadataError(reason))


def _unsupported(image: MetadataImage, supported: FeatureRanges | None) -> str | None:
    """Return the reason why this version of the software cannot work with an image. The result is ``None`` if
    the version can work with it.

    Kafka's features other than ``metadata.version`` are not checked here. They affect the requests between
    brokers. The controller checks them when a broker registers.
    """
    if supported is None:
        return None
    for name, level in image.features.items():
        highest = supported.get(name, (0, 0))[1]
        if level > highest and (name.startswith(OWN_PREFIX) or name == METADATA_VERSION_FEATURE):
            return (
                f"the cluster has {name} {level}, and this version of Moldau supports it up to {highest}:"
                " run a newer one"
            )
    return None


def _decoded(values: Iterable[Value]) -> Iterator[Message]:
    return (RECORDS.decode(value) for value in values)
