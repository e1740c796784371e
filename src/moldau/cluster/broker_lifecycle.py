"""The life cycle of a broker at the controller: registration, catching up, unfencing, controlled shutdown."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from moldau.cluster.controller.channel import ControllerChannel
from moldau.cluster.image.registrations import Endpoint, SupportedFeature
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from moldau.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from moldau.runtime import Entropy, ErrorCode, KafkaError

logger = logging.getLogger(__name__)


_REFUSALS: Final = {
    ErrorCode.duplicate_broker_registration: (
        " Another broker with this id is registered and alive: node.id is used by two nodes."
    ),
    ErrorCode.inconsistent_cluster_id: (
        " The controllers belong to another cluster than this broker's folders (cluster.id in"
        " meta.properties)."
    ),
    ErrorCode.invalid_registration: " The log of the active controller says what does not fit.",
    ErrorCode.unsupported_version: (
        " The cluster has a feature level that this version does not support; the log of the active"
        " controller names it."
    ),
    ErrorCode.invalid_request: " The log of the active controller says what does not fit.",
    ErrorCode.not_controller: " No active controller was reached.",
}
"""For each error with which the controller refuses a registration, an explanation for the operator. The
response itself has no field for a text."""


class LifecycleState(Enum):
    """The states of a broker. The legal transitions are in ``MOVES``."""

    NOT_RUNNING = "not running"
    STARTING = "starting"
    RECOVERY = "recovery"
    RUNNING = "running"
    PENDING_SHUTDOWN = "pending controlled shutdown"
    SHUTTING_DOWN = "shutting down"


MOVES: dict[LifecycleState, frozenset[LifecycleState]] = {
    LifecycleState.NOT_RUNNING: frozenset({LifecycleState.STARTING, LifecycleState.SHUTTING_DOWN}),
    LifecycleState.STARTING: frozenset({LifecycleState.RECOVERY, LifecycleState.SHUTTING_DOWN}),
    LifecycleState.RECOVERY: frozenset(
        {LifecycleState.RUNNING, LifecycleState.STARTING, LifecycleState.SHUTTING_DOWN}
    ),
    LifecycleState.RUNNING: frozenset(
        {LifecycleState.PENDING_SHUTDOWN, LifecycleState.STARTING, LifecycleState.SHUTTING_DOWN}
    ),
    LifecycleState.PENDING_SHUTDOWN: frozenset({LifecycleState.SHUTTING_DOWN}),
    LifecycleState.SHUTTING_DOWN: frozenset({LifecycleState.NOT_RUNNING}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """The values that identify a broker in its registration."""

    broker_id: int
    cluster_id: str
    incarnation_id: uuid.UUID
    endpoints: Sequence[Endpoint]
    features: Sequence[SupportedFeature]
    log_dirs: Sequence[uuid.UUID]
    """Ids of the log directories that were online when the process started."""
    rack: str | None = None
    previous_broker_epoch: int = -1
    """The broker epoch of the previous process, if that process stopped cleanly; otherwise -1 (KIP-966)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleTimes:
    """The intervals and limits, in ms, of a broker's requests to the controller."""

    heartbeat_interval_ms: int = 2_000
    registration_timeout_ms: int = 60_000
    retry_ms: int = 50


class BrokerLifecycle:
    """One task that registers the broker and sends heartbeats until the task is stopped.

    ``metadata_offset`` returns the offset up to which this broker has replayed the metadata log.
    ``on_registered`` is called with each new broker epoch before the first heartbeat with this epoch.
    ``failed_directories`` returns the ids of the log directories that have failed since the process started.
    """

    def __init__(
        self,
        identity: BrokerIdentity,
        channel: ControllerChannel,
        entropy: Entropy,
        metadata_offset: Callable[[], int],
        *,
        times: LifecycleTimes | None = None,
        on_registered: Callable[[int], None] = lambda epoch: None,
        failed_directories: Callable[[], Sequence[uuid.UUID]] = tuple,
    ) -> None:
        self._identity = identity
        self._channel = channel
        self._entropy = entropy
        self._metadata_offset = metadata_offset
        self._times = times or LifecycleTimes()
        self._on_registered = on_registered
        self._failed_directories = failed_directories
        self._want_fence = True
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._may_go = asyncio.Event()
        self._answered_s = 0.0
        """The time of the controller's last answer, in seconds of the event loop."""
        self._refusal = ""
        """The reason of the last refusal to register; empty once the broker is registered."""
        self.state = LifecycleState.NOT_RUNNING
        self.broker_epoch = -1
        self.is_fenced = True
        self.unfenced = asyncio.Event()
        self.reported_directories: frozenset[uuid.UUID] = frozenset()
        """The failed log directories that this broker has reported to the controller, in its current
        registration or in heartbeats since then."""

    def start(self) -> "asyncio.Task[None]":
        """Start the task. If the controller refuses this broker permanently, at the start or later, the task
        ends with ``KafkaError``."""
        self._move(LifecycleState.STARTING)
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    def ready(self) -> None:
        """Ask the controller to unfence the broker, because the broker can now serve clients."""
        self._want_fence = False
        self._wake.set()

    def metadata_moved(self) -> None:
        """Called when this broker has replayed metadata records. If the broker has replayed its own
        registration and is still fenced, it sends the next heartbeat immediately."""
        if self.is_fenced and not self._want_fence and self._metadata_offset() >= self.broker_epoch >= 0:
            self._wake.set()

    def directory_failed(self) -> None:
        """Report to the controller at once that a log directory has failed (KIP-858)."""
        self._wake.set()

    def problem(self) -> str | None:
        """Return the problem for the health page, if the broker is not registered or is fenced. In both cases
        other brokers do not name this broker to clients."""
        match self.state:
            case LifecycleState.NOT_RUNNING | LifecycleState.STARTING:
                return self._refusal or "the broker has not registered yet"
            case LifecycleState.RECOVERY:
                return "the controller has not unfenced this broker yet"
            case LifecycleState.RUNNING if self.is_fenced:
                return "the controller has fenced this broker"
            case _:
                return None

    async def controlled_shutdown(self, timeout_ms: int, silence_ms: int | None = None) -> bool:
        """Hand over all leaderships, then end the task. Returns False if the controller did not agree within
        ``timeout_ms``.

        Heartbeats are repeated until the controller agrees. If the controller does not respond for
        ``silence_ms``, the broker stops waiting, because its session will expire.
        """
        if self.state is LifecycleState.RUNNING:
            self._move(LifecycleState.PENDING_SHUTDOWN)
            self._wake.set()
            await self._until_agreed(timeout_ms, timeout_ms if silence_ms is None else silence_ms)
        agreed = self._may_go.is_set()
        await self.stop()
        return agreed

    async def _until_agreed(self, timeout_ms: int, silence_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self._answered_s = loop.time()
        deadline = loop.time() + timeout_ms / 1000
        while not self._may_go.is_set():
            due = min(deadline, self._answered_s + silence_ms / 1000)
            if loop.time() >= due:
                logger.warning(
                    "broker %d leaves without the controller's leave: its partitions get other leaders when"
                    " its session ends",
                    self._identity.broker_id,
                )
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._may_go.wait()

    async def stop(self) -> None:
        """End the task immediately. The broker does not tell the controller about this stop. The controller
        fences the broker when its session expires, or when its process ends."""
        if self.state is LifecycleState.NOT_RUNNING:
            return
        if self.state is not LifecycleState.SHUTTING_DOWN:
            self._move(LifecycleState.SHUTTING_DOWN)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._move(LifecycleState.NOT_RUNNING)

    async def _run(self) -> None:
        while not self._may_go.is_set():
            if self.state is LifecycleState.STARTING:
                await self._register()
            await self._heartbeat()

    async def _register(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._times.registration_timeout_ms / 1000
        attempt = 0
        while True:
            code = await self._try_to_register()
            if code is ErrorCode.none:
                return
            # Two errors are temporary. NOT_CONTROLLER ends when a controller is elected.
            # DUPLICATE_BROKER_REGISTRATION ends when the session of this broker's former process expires.
            is_temporary = code in (ErrorCode.not_controller, ErrorCode.duplicate_broker_registration)
            reason = f"{code.name.replace('_', ' ')}.{_REFUSALS.get(code, '')}"
            if not is_temporary or loop.time() >= deadline:
                raise KafkaError(code, f"Broker {self._identity.broker_id} could not register: {reason}")
            self._note_refusal(code, f"Broker {self._identity.broker_id} is not registered: {reason}")
            await self._back_off(attempt)
            attempt += 1

    def _note_refusal(self, code: ErrorCode, text: str) -> None:
        """Store a temporary refusal for the health page. A new refusal is also logged. It is not logged if
        the reason is that the quorum has no leader: the quorum itself logs this problem.
        """
        if text != self._refusal and code is ErrorCode.duplicate_broker_registration:
            logger.warning(
                "%s The broker repeats its request for %d s, because the session of its last process may not"
                " have expired.",
                text,
                self._times.registration_timeout_ms // 1000,
            )
        self._refusal = text

    async def _try_to_register(self) -> ErrorCode:
        identity, failed = self._identity, self._failed_directories()
        request = BrokerRegistrationRequest(
            broker_id=identity.broker_id,
            cluster_id=identity.cluster_id,
            incarnation_id=identity.incarnation_id,
            listeners=[
                Listener(
                    name=endpoint.name,
                    host=endpoint.host,
                    port=endpoint.port,
                    security_protocol=endpoint.security_protocol,
                )
                for endpoint in identity.endpoints
            ],
            features=[
                Feature(
                    name=feature.name,
                    min_supported_version=feature.min_level,
                    max_supported_version=feature.max_level,
                )
                for feature in identity.features
            ],
            rack=identity.rack,
            log_dirs=tuple(each for each in identity.log_dirs if each not in failed),
            previous_broker_epoch=self._identity.previous_broker_epoch,
        )
        try:
            response: BrokerRegistrationResponse = await self._channel.send(request)
        except KafkaError as error:
            return error.code
        if response.error_code is ErrorCode.none:
            self.reported_directories = frozenset(identity.log_dirs) - frozenset(request.log_dirs)
            self.broker_epoch = response.broker_epoch
            self._refusal = ""
            self._on_registered(response.broker_epoch)
            self._move(LifecycleState.RECOVERY)
            logger.info("broker %d registered with epoch %d", identity.broker_id, self.broker_epoch)
        return response.error_code

    async def _heartbeat(self) -> None:
        self._wake.clear()
        request = BrokerHeartbeatRequest(
            broker_id=self._identity.broker_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._metadata_offset(),
            want_fence=self._want_fence,
            want_shut_down=self.state is LifecycleState.PENDING_SHUTDOWN,
            offline_log_dirs=tuple(self._failed_directories()),
        )
        try:
            response: BrokerHeartbeatResponse = await self._channel.send(request)
            code = response.error_code
        except KafkaError as error:
            code = error.code
        if code is ErrorCode.none:
            self.reported_directories = frozenset(request.offline_log_dirs)
            self._process_heartbeat(response)
            if not self._may_go.is_set():
                await self._pause(self._times.heartbeat_interval_ms)
        elif code in (ErrorCode.stale_broker_epoch, ErrorCode.broker_id_not_registered):
            self._start_again()
        else:
            await self._back_off(0)

    def _process_heartbeat(self, response: BrokerHeartbeatResponse) -> None:
        self._answered_s = asyncio.get_running_loop().time()
        if self.state is LifecycleState.RUNNING and response.is_fenced != self.is_fenced:
            if response.is_fenced:
                logger.warning("broker %d is fenced by the controller", self._identity.broker_id)
            else:
                logger.info("broker %d is unfenced", self._identity.broker_id)
        self.is_fenced = response.is_fenced
        if response.should_shut_down and self.state in (LifecycleState.RECOVERY, LifecycleState.RUNNING):
            # The controller has begun a controlled shutdown that this object did not request. It must come
            # from another request with this broker's epoch. A new registration ends the controlled shutdown.
            self._start_again()
        elif response.should_shut_down:
            self._may_go.set()
        elif self.state is LifecycleState.RECOVERY and not response.is_fenced:
            self._move(LifecycleState.RUNNING)
            self.unfenced.set()
            logger.info("broker %d is unfenced", self._identity.broker_id)
        elif self.state is LifecycleState.PENDING_SHUTDOWN:
            # The controller has moved the leaderships to other brokers. The response to a later heartbeat
            # shows whether all brokers have replayed these changes.
            asyncio.get_running_loop().call_later(self._times.retry_ms / 1000, self._wake.set)

    def _start_again(self) -> None:
        """Register again, because the controller no longer knows this broker epoch."""
        self.is_fenced = True
        if self.state is LifecycleState.PENDING_SHUTDOWN:
            self._may_go.set()
        elif self.state in (LifecycleState.RECOVERY, LifecycleState.RUNNING):
            logger.warning("broker %d registers again", self._identity.broker_id)
            self.unfenced.clear()
            self._move(LifecycleState.STARTING)

    async def _back_off(self, attempt: int) -> None:
        delay_ms = min(self._times.retry_ms * 2**attempt, self._times.heartbeat_interval_ms)
        await asyncio.sleep(delay_ms * self._entropy.uniform(0.8, 1.2) / 1000)

    async def _pause(self, delay_ms: int) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), delay_ms / 1000)

    def _move(self, state: LifecycleState) -> None:
        if state not in MOVES[self.state]:
            raise AssertionError(f"a broker does not go from {self.state.value} to {state.value}")
        self.state = state
