"""Runs the controller on the metadata log while this node leads the log. The contract is in
:mod:`.controller`."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from moldau.cluster.controller.answers import error_response
from moldau.cluster.controller.channel import Caller
from moldau.cluster.controller.controller import Controller
from moldau.cluster.controller.decided_apis import is_large
from moldau.cluster.controller.quorum_changes import QuorumChanges
from moldau.cluster.decisions.decision_cost import has_many_replicas
from moldau.cluster.decisions.ended_processes import Suspect
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.image_records import encode_record
from moldau.cluster.image.parts.table import PARTS
from moldau.cluster.image.registrations import FENCE
from moldau.cluster.metadata_log import RECORDS_A_TURN, MetadataBatch, MetadataLog, Value
from moldau.cluster.publisher import MetadataPublisher
from moldau.protocol.api import Scope, scopes
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest
from moldau.protocol.messages.controller_registration import ControllerRegistrationRequest
from moldau.protocol.records.metadata import BrokerRegistrationChangeRecord, NoOpRecord
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.workers import Workers

logger = logging.getLogger(__name__)


class _Chore:
    """A decision that is repeated at an interval in ms. The interval 0 means never."""

    def __init__(self, interval_ms: int, do: Callable[[], None]) -> None:
        self._interval_s = interval_ms / 1000
        self._do = do
        self._timer: asyncio.TimerHandle | None = None
        self._plan()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self) -> None:
        if self._interval_s:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._run)

    def _run(self) -> None:
        self._plan()
        self._do()


class ControllerService:
    """A listener of the metadata log. Add this listener *after* the publisher, because at the beginning of a
    leadership this listener uses the publisher's image."""

    def __init__(
        self,
        node_id: int,
        controller: Controller,
        log: MetadataLog,
        publisher: MetadataPublisher,
        workers: Workers,
        bootstrap_records: Sequence[Message] = (),
        quorum_changes: QuorumChanges | None = None,
    ) -> None:
        """``workers`` decide, replay and encode large requests, which would block the event loop.

        ``quorum_changes`` handles the requests that the quorum decides. If it is ``None``, these requests are
        refused.
        """
        self._node_id = node_id
        self._controller = controller
        self._log = log
        self._publisher = publisher
        self._workers = workers
        self._bootstrap_records = bootstrap_records
        self._quorum_changes = quorum_changes
        self._epoch = -1
        self._deciding = asyncio.Lock()
        self._last_append: asyncio.Future[int] | None = None
        self._last_refusal: str | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._chores: list[_Chore] = []
        self._aside: set[asyncio.Task[None]] = set()
        self.on_leadership: list[Callable[[bool], None]] = []
        """Called with True when this node has become the active controller, and with False when it is not the
        active controller any more."""

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return self._epoch >= 0

    @property
    def image(self) -> MetadataImage:
        """The state on which an active controller bases its decisions. It includes uncommitted records."""
        return self._controller.image

    async def handle(
        self, request: Message, caller: Caller | None = None, deadline: float | None = None
    ) -> Message:
        """Answer a request when all records on which the response depends are committed.

        If processing would begin after ``deadline`` (in seconds of the event loop's clock), the request
        changes nothing. The response is then REQUEST_TIMED_OUT, as in Kafka's controller. Changes by clients
        are logged with the clients' names. The response is NOT_CONTROLLER while this node is not active. It
        is also NOT_CONTROLLER when this node loses its leadership before the commit is known. In that case
        the change may have been made, and callers retry.
        """
        if not self.is_active:
            return error_response(
                request, ErrorCode.not_controller, "This node is not the active controller."
            )
        changes = self._quorum_changes
        if changes is not None and changes.handles(request):
            return await changes.handle(request, partial(self.handle, caller=caller, deadline=deadline))
        async with self._deciding:
            if deadline is not None and asyncio.get_running_loop().time() >= deadline:
                return error_response(
                    request, ErrorCode.request_timed_out, "The request's time was over before its turn."
                )
            response = await self._decide(request, caller)
        self._watch_sessions()
        last_append = self._last_append
        if last_append is None:
            return response
        try:
            # Wait for the last append of earlier decisions. This is needed even if the request changed
            # nothing, because its response may depend on uncommitted records.
            await asyncio.shield(last_append)
        except KafkaError as error:
            return error_response(request, ErrorCode.not_controller, error.message)
        except asyncio.CancelledError:
            if not last_append.cancelled():
                raise
            return error_response(request, ErrorCode.not_controller, "This node stopped leading.")
        return response

    async def _decide(self, request: Message, caller: Caller | None) -> Message:
        epoch = self._epoch
        if epoch < 0:
            return error_response(request, ErrorCode.not_controller, "This node stopped leading.")
        try:
            decide = self._controller.handle
            if is_large(request, self._controller.image):
                # The decision can safely run on a worker thread, because metadata are immutable and no other
                # decision is made at the same time.
                result = await self._workers.run(decide, request, self._now_ms(), self._log.next_offset())
                if self._epoch != epoch:
                    return error_response(request, ErrorCode.not_controller, "This node stopped leading.")
            else:
                result = decide(request, self._now_ms(), self._log.next_offset())
            if len(result.records) <= RECORDS_A_TURN:
                if result.records:
                    self._append(result.records)
            elif not await self._append_aside(epoch, result.records):
                return error_response(request, ErrorCode.not_controller, "This node stopped leading.")
            if result.warning:
                logger.warning("controller %d: %s", self._node_id, result.warning)
            if result.records and caller is not None and Scope.BROKER in scopes(request.API_KEY):
                logger.info("controller %d: %s of %s", self._node_id, type(request).__name__, caller)
        except KafkaError as error:
            self._say_what_is_refused(request, error)
            return error_response(request, error.code, error.message)
        except Exception:
            # A decision does not change the controller's state, so the controller stays valid after an
            # exception in a decision.
            logger.exception("the controller failed on %s", type(request).__name__)
            return error_response(request, ErrorCode.unknown_server_error)
        return result.response

    def _say_what_is_refused(self, request: Message, error: KafkaError) -> None:
        """Log a refused registration, because the response to a broker has no text.

        A broker repeats the request until the session of its former process has expired. The error for this
        case (duplicate_broker_registration) is not logged. A controller repeats its request without end, so a
        line with the same text as the previous line is not logged.
        """
        is_controller = isinstance(request, ControllerRegistrationRequest)
        if not is_controller and not isinstance(request, BrokerRegistrationRequest):
            return
        is_repeated = is_controller and error.message == self._last_refusal
        if error.code is not ErrorCode.duplicate_broker_registration and not is_repeated:
            self._last_refusal = error.message
            logger.warning("controller %d refuses a registration: %s", self._node_id, error.message)

    async def _append_aside(self, epoch: int, records: Sequence[Message]) -> bool:
        """Replay many records and append them as one batch, like :meth:`_append`. A worker replays and
        encodes the records.

        If the leadership ends in the meantime, appends nothing and returns False. No other decision is made
        before this method returns.
        """
        image = await self._workers.run(self._controller.replayed, records)
        values = await self._workers.run(_encoded, records, image)
        if self._epoch != epoch:
            return False
        before = self._controller.image
        self._controller.restore(image)
        self._append_values(values, before)
        return True

    def close(self) -> None:
        """Resign the leadership, and stop all timers of the controller."""
        if self.is_active:
            epoch = self._epoch
            self._deactivate()
            self._log.resign(epoch)

    def on_snapshot(self, end_offset: int, epoch: int, timestamp_ms: int, values: Iterable[Value]) -> None:
        """Nothing is done, because the publisher reads snapshots, and a leader never receives a snapshot."""

    def on_commit(self, batches: Sequence[MetadataBatch]) -> None:
        """Nothing is done, because the publisher reads the batches, and this leader has already replayed its
        own decisions."""

    def on_leader(self, leader_id: int, epoch: int) -> None:
        if leader_id == self._node_id:
            if epoch != self._epoch:
                self._activate(epoch)
        elif self.is_active:
            logger.info("controller %d: epoch %d ended", self._node_id, self._epoch)
            self._deactivate()

    def _activate(self, epoch: int) -> None:
        self._deactivate()
        if self._publisher.check_levels() is not None or self._publisher.is_faulty:
            # This node could not apply a record of the log, or it does not support a feature level. It must
            # stop, and it must not make decisions on this image.
            self._log.resign(epoch)
            return
        self._epoch = epoch
        self._controller.activate(self._publisher.image, self._now_ms())
        logger.info("controller %d: active in epoch %d", self._node_id, epoch)
        first_records = self._controller.bootstrap(self._bootstrap_records)
        if first_records:
            self._append(first_records)
        self._watch_sessions()
        controller = self._controller
        self._chores = [
            _Chore(
                controller.leader_balance_interval_ms,
                partial(
                    self._do_chore, controller.balance_leaders, "leaderships go back to preferred replicas"
                ),
            ),
            _Chore(
                controller.unclean_election_interval_ms,
                partial(
                    self._do_chore, controller.elect_unclean, "partitions get leaders that may lack records"
                ),
            ),
            _Chore(controller.no_op_interval_ms, self._append_no_op),
        ]
        for listener in self.on_leadership:
            listener(True)

    def _deactivate(self) -> None:
        self._epoch = -1
        for listener in self.on_leadership:
            listener(False)
        self._last_append = None
        for chore in self._chores:
            chore.cancel()
        self._chores = []
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for task in self._aside:
            task.cancel()

    def _append(self, records: Sequence[Message]) -> None:
        """Replay the records and append them to the log. The next decision is then made on the state after
        these records."""
        before = self._controller.image
        try:
            self._controller.replay(records)
            values = _encoded(records, self._controller.image)
        except Exception:
            self._controller.restore(before)
            raise
        self._append_values(values, before)

    def _append_values(self, values: Sequence[bytes], before: MetadataImage) -> None:
        """Append records that the controller has replayed. If the append fails, the controller returns to the
        image ``before``."""
        epoch = self._epoch
        try:
            future = self._log.append(epoch, values)
        except Exception:
            # Nothing was appended, so the controller drops the decision.
            self._controller.restore(before)
            raise
        self._last_append = future
        future.add_done_callback(lambda done: self._appended(epoch, done))

    def _appended(self, epoch: int, future: "asyncio.Future[int]") -> None:
        if self._failed(future) and epoch == self._epoch:
            logger.warning("controller %d: an append failed in epoch %d", self._node_id, epoch)
            self._deactivate()
            self._log.resign(epoch)

    @staticmethod
    def _failed(future: "asyncio.Future[int]") -> bool:
        return future.cancelled() or future.exception() is not None

    def _watch_sessions(self) -> None:
        if self._expiry is not None or not self.is_active:
            return
        deadline_ms = self._controller.next_deadline_ms(self._now_ms())
        if deadline_ms is not None:
            # There is one timer for the sessions of all brokers. Heartbeats extend sessions, but they do not
            # change the timer. If the timer fires and no session has expired, the timer is set again.
            self._expiry = asyncio.get_running_loop().call_at(deadline_ms / 1000, self._expire_sessions)

    def _expire_sessions(self) -> None:
        self._expiry = None
        if self._deciding.locked():
            return  # A decision is in progress. When it is done, the sessions are checked.
        if has_many_replicas(self._controller.image):
            self._spawn(self._expire_sessions_aside())
            return
        while self.is_active:
            records = self._controller.expire_sessions(self._now_ms(), self._log.next_offset())
            if not records:
                break
            self._say_who_is_fenced(records, "its heartbeats have stopped")
            self._append(records)
        self._watch_sessions()

    async def _expire_sessions_aside(self) -> None:
        """Fence brokers like :meth:`_expire_sessions`, but decide on a worker. An expiry may change many
        partitions."""
        controller, log = self._controller, self._log
        while records := await self._decide_aside(
            lambda: partial(controller.expire_sessions, self._now_ms(), log.next_offset())
        ):
            self._say_who_is_fenced(records, "its heartbeats have stopped")
        self._watch_sessions()

    async def fence_ended(self, suspect: Suspect) -> bool:
        """Fence a broker whose listeners refuse connections. Returns False if the suspicion is over."""
        controller, log = self._controller, self._log
        records = await self._decide_aside(
            lambda: partial(controller.fence_ended, suspect, self._now_ms(), log.next_offset())
        )
        self._say_who_is_fenced(records, "its process has ended: all its listeners refuse connections")
        self._watch_sessions()
        return bool(records)

    def _say_who_is_fenced(self, records: Sequence[Message], reason: str) -> None:
        for record in records:
            if isinstance(record, BrokerRegistrationChangeRecord) and record.fenced == FENCE:
                logger.warning(
                    "controller %d: broker %d is fenced, %s", self._node_id, record.broker_id, reason
                )

    def _do_chore(self, decide: Callable[[], Sequence[Message]], what: str) -> None:
        if self._deciding.locked():
            return  # Another decision is in progress. This decision is made at the next interval.
        if has_many_replicas(self._controller.image):
            self._spawn(self._do_chore_aside(decide, what))
            return
        records = decide()
        if records:
            self._say_what_is_done(records, what)
            self._append(records)

    def _append_no_op(self) -> None:
        """Append a record without content, so that the end of the log advances (KIP-835). Nodes compare the
        last offset that they have replayed with this end. A leader that has lost its majority detects this,
        because the record is not committed."""
        if self._deciding.locked():
            return  # no record is needed: the records of the decision in progress move the end of the log
        with contextlib.suppress(KafkaError):  # The quorum has stopped on this node.
            self._append((NoOpRecord(),))

    async def _do_chore_aside(self, decide: Callable[[], Sequence[Message]], what: str) -> None:
        records = await self._decide_aside(lambda: decide)
        if records:
            self._say_what_is_done(records, what)
        self._watch_sessions()

    def _say_what_is_done(self, records: Sequence[Message], what: str) -> None:
        logger.info("controller %d: %d %s", self._node_id, len(records), what)

    async def _decide_aside(
        self, decision: Callable[[], Callable[[], Sequence[Message]]]
    ) -> Sequence[Message]:
        """Make a decision on a worker, append its records and return them. Returns no records if the
        leadership ends in the meantime. ``decision`` is called on the event loop when no other decision is in
        progress. The function that it returns is called on the worker and makes the decision."""
        async with self._deciding:
            epoch = self._epoch
            if epoch < 0:
                return ()
            records = await self._workers.run(decision())
            if not records or self._epoch != epoch:
                return ()
            if len(records) <= RECORDS_A_TURN:
                self._append(records)
            elif not await self._append_aside(epoch, records):
                return ()
            return records

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._aside.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._aside.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the controller failed on a decision of its own", exc_info=error)

    @staticmethod
    def _now_ms() -> int:
        """Return the event loop's time in ms. It is rounded up. Otherwise, when the timer of a deadline
        fires, the rounded time could still be before the deadline."""
        return math.ceil(asyncio.get_running_loop().time() * 1000)


def _encoded(records: Sequence[Message], image: MetadataImage) -> list[bytes]:
    """Encode the records of a decision. ``image`` already contains their changes. Raises
    ``MissingLevelError`` for a record that the cluster's feature levels do not allow."""
    PARTS.require_levels(records, image)
    return [encode_record(record, image.metadata_version) for record in records]


class LocalControllerChannel:
    """The channel to a controller in the same process."""

    def __init__(self, service: ControllerService) -> None:
        self._service = service

    async def send(
        self, request: Message, caller: Caller | None = None, deadline: float | None = None
    ) -> Any:
        """See :class:`moldau.cluster.controller.channel.ControllerChannel`."""
        return await self._service.handle(request, caller, deadline)
