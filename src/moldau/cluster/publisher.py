"""Turns committed batches into images and passes them to the parts of the node."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

from moldau.cluster.errors import MetadataError
from moldau.cluster.image.delta import MetadataDelta, delta_between
from moldau.cluster.image.image import EMPTY_IMAGE, MetadataImage, Provenance
from moldau.cluster.metadata_log import RECORDS_A_TURN, MetadataBatch, Value
from moldau.protocol.errors import ProtocolError
from moldau.protocol.records.metadata import (
    RECORDS,
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from moldau.protocol.schema import Message

logger = logging.getLogger(__name__)

RECORDS_A_STEP: Final = 500
"""Number of records that are decoded and replayed in one step. It takes some 5 ms."""


class ImageSubscriber(Protocol):
    """A part of the node that reacts to changes of the metadata."""

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """React to a new image. ``delta`` is the difference from the image of the last call; in the first
        call, from an empty image."""
        ...


class MetadataPublisher:
    """A listener of the metadata log. All work is done in the call that passes the batches, or in the steps
    that the call returns. Therefore the image contains the result directly after a commit.

    ``on_fault`` is called once when the log cannot be followed any further. The node must then stop, because
    it would serve old metadata forever.
    """

    def __init__(self, on_fault: Callable[[MetadataError], None]) -> None:
        self._image = EMPTY_IMAGE
        self._subscribers: list[ImageSubscriber] = []
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._transaction: list[Message] | None = None
        self._on_fault = on_fault
        self._faulty = False
        self.leader_id = -1
        self.leader_epoch = -1

    @property
    def image(self) -> MetadataImage:
        """The image of all committed records that this node has applied."""
        return self._image

    def subscribe(self, subscriber: ImageSubscriber) -> None:
        """Call ``subscriber`` with the current image now, and again after every change. Subscribers are
        called in the order of subscription.
        """
        self._subscribers.append(subscriber)
        if self._image is not EMPTY_IMAGE:
            self._tell(subscriber, delta_between(EMPTY_IMAGE, self._image))

    def unsubscribe(self, subscriber: ImageSubscriber) -> None:
        """Stop calling ``subscriber``. A call for an unknown subscriber has no effect."""
        self._subscribers = [each for each in self._subscribers if each is not subscriber]

    def until(self, condition: Callable[[], bool]) -> asyncio.Future[None]:
        """A future that is done when ``condition`` is true. The condition is checked after each new image."""
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
        except (MetadataError, ProtocolError) as error:
            self._fail(f"snapshot {end_offset}-{epoch} of the metadata cannot be loaded: {error}")
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
                self._fail(f"the metadata log cannot be followed at offset {batch.base_offset}: {error}")
                return
        last = batches[-1]
        image = delta.apply(Provenance(last.last_offset, last.epoch, last.timestamp_ms))
        if count > RECORDS_A_STEP:
            yield
        self._publish(delta, image)

    def _replay(self, delta: MetadataDelta, record: Message) -> None:
        """Apply a record. Records of a transaction become visible together or not at all (KIP-868)."""
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

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._image = image
        for subscriber in self._subscribers:
            self._tell(subscriber, delta)
        waiting, self._waiting = self._waiting, []
        for condition, future in waiting:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            else:
                self._waiting.append((condition, future))

    def _tell(self, subscriber: ImageSubscriber, delta: MetadataDelta) -> None:
        try:
            subscriber.on_image(delta, self._image)
        except Exception:
            # Other subscribers must still get the new metadata after an exception in one subscriber.
            logger.exception(
                "%s failed on metadata offset %d", type(subscriber).__name__, self._image.provenance.offset
            )

    def _fail(self, reason: str) -> None:
        self._faulty = True
        self._on_fault(MetadataError(reason))


def _decoded(values: Iterable[Value]) -> Iterator[Message]:
    return (RECORDS.decode(value) for value in values)
