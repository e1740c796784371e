"""Registration, heartbeats and fencing of brokers (KIP-631), and the registration of controllers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from moldau.cluster.decisions.heartbeats import Heartbeats
from moldau.cluster.decisions.kinds.levels import check_knows_own_levels
from moldau.cluster.decisions.partitions.election_causes import (
    changes_with_broker,
    leads_any_partition,
    view_after,
)
from moldau.cluster.decisions.partitions.lost_brokers import (
    changes_without_broker,
    changes_without_directories,
)
from moldau.cluster.decisions.partitions.topic_rules import keeps_eligible
from moldau.cluster.decisions.view import ControllerResult, View
from moldau.cluster.image.delta import image_of
from moldau.cluster.image.directories import RESERVED_DIRECTORY_COUNT
from moldau.cluster.image.image import METADATA_VERSION_FEATURE, METADATA_VERSION_OF_DIRECTORIES
from moldau.cluster.image.registrations import (
    ENTER_CONTROLLED_SHUTDOWN,
    FENCE,
    UNFENCE,
    BrokerRegistration,
    Endpoint,
    SupportedFeature,
)
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import DECISIVE_TOPICS
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from moldau.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
)
from moldau.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from moldau.protocol.messages.controller_registration import Feature as ControllerFeature
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError


class BrokerState(Enum):
    """The states of a broker that the controller can decide on."""

    FENCED = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    SHUTDOWN_NOW = auto()


@dataclass(frozen=True, slots=True)
class BrokerInputs:
    """The inputs that decisions about brokers need in addition to :class:`View`. ``next_offset`` is the
    offset that the first record of the decision will get."""

    heartbeats: Heartbeats
    now_ms: int
    next_offset: int


def register_broker(
    view: View, context: BrokerInputs, request: BrokerRegistrationRequest
) -> ControllerResult:
    """Register an incarnation of a broker as fenced. Its epoch is the offset of its record.

    Raises ``KafkaError``: inconsistent_cluster_id, duplicate_broker_registration while another incarnation is
    alive, or unsupported_version when the broker does not support a finalized feature level.
    """
    _check_registration(view, context, request)
    existing = view.image.brokers.get(request.broker_id)
    same_incarnation = existing is not None and existing.incarnation_id == request.incarnation_id
    records: list[Message] = []
    warning = ""
    if existing is not None and not same_incarnation:
        records += _end_of_incarnation(view, existing, request)
        warning = _warning(existing, request)
    epoch = context.next_offset + len(records)
    if existing is not None and same_incarnation:
        epoch = existing.epoch
    records.append(
        r.RegisterBrokerRecord(
            broker_id=request.broker_id,
            is_migrating_zk_broker=request.is_migrating_zk_broker,
            incarnation_id=request.incarnation_id,
            broker_epoch=epoch,
            end_points=[
                r.BrokerEndpoint(
                    name=listener.name,
                    host=listener.host,
                    port=listener.port,
                    security_protocol=listener.security_protocol,
                )
                for listener in request.listeners
            ],
            features=[
                r.BrokerFeature(
                    name=feature.name,
                    min_supported_version=feature.min_supported_version,
                    max_supported_version=feature.max_supported_version,
                )
                for feature in request.features
            ],
            rack=request.rack,
            fenced=existing.fenced if existing is not None and same_incarnation else True,
            in_controlled_shutdown=False,
            log_dirs=tuple(request.log_dirs),
        )
    )
    context.heartbeats.touch(request.broker_id, epoch, context.now_ms)
    if existing is not None and same_incarnation and not set(existing.log_dirs) <= set(request.log_dirs):
        records += changes_without_directories(_after(view, records[-1]), request.broker_id)
    return ControllerResult(BrokerRegistrationResponse(broker_epoch=epoch), records, warning)


def _warning(existing: BrokerRegistration, request: BrokerRegistrationRequest) -> str:
    """Return the reason why a broker may lack acknowledged records. The text is empty if the broker has
    stopped cleanly."""
    previous = request.previous_broker_epoch
    if previous == existing.epoch:
        return ""
    reason = "was not stopped cleanly"
    if previous >= 0:
        reason = (
            f"has folders that were closed in epoch {previous}, and its last epoch is {existing.epoch}: they"
            " are an older copy"
        )
    elif not set(existing.log_dirs) <= set(request.log_dirs):
        reason = "comes without a log directory that it had"
    return f"broker {existing.broker_id} {reason}. It must follow before it can be in sync or eligible"


def _end_of_incarnation(
    view: View, existing: BrokerRegistration, request: BrokerRegistrationRequest
) -> list[Message]:
    """Return the records that end the previous incarnation of the broker. If that incarnation did not stop
    cleanly, its replicas may lack acknowledged records."""
    is_clean = request.previous_broker_epoch == existing.epoch
    is_other_folder = request.previous_broker_epoch >= 0 or not set(existing.log_dirs) <= set(
        request.log_dirs
    )

    def is_incomplete(topic: Topic) -> bool:
        # A record of a topic in ``DECISIVE_TOPICS`` is synced before it is acknowledged, so a crash does not
        # lose the record. But if the folder was lost, or restored from an older copy, records are missing
        # even if the broker had stopped cleanly.
        return not is_clean and (is_other_folder or topic.name not in DECISIVE_TOPICS)

    if not existing.fenced:
        return _fence(view, existing, is_incomplete)
    if is_clean or not keeps_eligible(view):
        return []
    return [*changes_without_broker(view, existing.broker_id, is_incomplete)]


def _check_registration(view: View, context: BrokerInputs, request: BrokerRegistrationRequest) -> None:
    if request.cluster_id != view.settings.cluster_id:
        raise KafkaError(
            ErrorCode.inconsistent_cluster_id,
            f"Broker {request.broker_id} is of cluster {request.cluster_id}, "
            f"this is {view.settings.cluster_id}.",
        )
    existing = view.image.brokers.get(request.broker_id)
    if (
        existing is not None
        and existing.incarnation_id != request.incarnation_id
        and not existing.in_controlled_shutdown
        and context.heartbeats.is_alive(request.broker_id, existing.epoch, context.now_ms)
    ):
        raise KafkaError(
            ErrorCode.duplicate_broker_registration,
            f"Another broker with id {request.broker_id} is registered and alive.",
        )
    if (
        existing is not None
        and existing.incarnation_id == request.incarnation_id
        and not _is_repeated(
            existing,
            request,
            is_alive=context.heartbeats.is_alive(request.broker_id, existing.epoch, context.now_ms),
        )
    ):
        raise KafkaError(
            ErrorCode.duplicate_broker_registration,
            f"This incarnation of broker {request.broker_id} is registered with other values.",
        )
    _check_log_dirs(view, request)
    check_knows_own_levels(
        view.image,
        f"Broker {request.broker_id}",
        _supported(request.features),
        ErrorCode.unsupported_version,
    )
    supported = {feature.name: feature for feature in request.features}
    for name, level in view.image.features.items():
        feature = supported.get(name)
        low, high = (
            (0, 0) if feature is None else (feature.min_supported_version, feature.max_supported_version)
        )
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"Broker {request.broker_id} supports {name} {low} to {high}, the cluster has {level}.",
            )


def _is_repeated(existing: BrokerRegistration, request: BrokerRegistrationRequest, *, is_alive: bool) -> bool:
    """Whether the registered incarnation sends the same registration again.

    The addresses of an incarnation do not change, so a request with other addresses is not a repetition. If
    it were accepted, clients would get wrong addresses until the broker's next start. The log directories may
    differ in two cases. A directory can fail while the broker has no session, and a broker of Kafka adds its
    log directories after an upgrade.
    """
    listeners = {
        Endpoint(each.name, each.host, each.port, each.security_protocol) for each in request.listeners
    }
    return (
        listeners == set(existing.endpoints)
        and set(_supported(request.features)) == set(existing.features)
        and request.rack == existing.rack
        and (not is_alive or not existing.log_dirs or set(request.log_dirs) == set(existing.log_dirs))
    )


def _supported(features: Iterable[Feature | ControllerFeature]) -> list[SupportedFeature]:
    return [
        SupportedFeature(each.name, each.min_supported_version, each.max_supported_version)
        for each in features
    ]


def _check_log_dirs(view: View, request: BrokerRegistrationRequest) -> None:
    if len(set(request.log_dirs)) != len(request.log_dirs):
        raise KafkaError(ErrorCode.invalid_request, "A log directory id is given twice.")
    for directory in request.log_dirs:
        if directory.int < RESERVED_DIRECTORY_COUNT:
            raise KafkaError(ErrorCode.invalid_request, f"The log directory id {directory} is reserved.")
    mine = set(request.log_dirs)
    for other in view.image.brokers.values():
        if other.broker_id != request.broker_id and mine.intersection(other.log_dirs):
            raise KafkaError(
                ErrorCode.invalid_registration,
                f"A log directory of broker {request.broker_id} is registered by broker {other.broker_id}.",
            )


def heartbeat(view: View, context: BrokerInputs, request: BrokerHeartbeatRequest) -> ControllerResult:
    """Store the time of a heartbeat, and answer with the broker's new state. Raises
    ``KafkaError(stale_broker_epoch)``."""
    broker = registered(view, request.broker_id, request.broker_epoch)
    context.heartbeats.touch(broker.broker_id, broker.epoch, context.now_ms, request.current_metadata_offset)
    is_caught_up = request.current_metadata_offset >= broker.epoch
    records = _directories_failed(view, broker, request)
    if records:
        view = _after(view, records[0])
    state = _next_state(view, context, broker, request, is_caught_up)
    change = _transition(view, broker, state)
    if records and not change:
        change = [*changes_without_directories(view, broker.broker_id)]
    records += change
    if state is BrokerState.CONTROLLED_SHUTDOWN:
        context.heartbeats.begin_shutdown(broker.broker_id, context.next_offset + len(records) - 1)
    response = BrokerHeartbeatResponse(
        is_caught_up=is_caught_up,
        is_fenced=state in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW),
        should_shut_down=state is BrokerState.SHUTDOWN_NOW,
    )
    return ControllerResult(response, records)


def _directories_failed(
    view: View, broker: BrokerRegistration, request: BrokerHeartbeatRequest
) -> list[Message]:
    """Return the record that removes failed log directories from the broker's registration (KIP-858).

    If all directories have failed, there is no such record, because the broker is fenced instead.
    """
    failed = set(request.offline_log_dirs).intersection(broker.log_dirs)
    online = [each for each in broker.log_dirs if each not in failed]
    if not failed or not online or view.image.metadata_version < METADATA_VERSION_OF_DIRECTORIES:
        return []
    return [
        r.BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.epoch, log_dirs=tuple(online)
        )
    ]


def _has_no_directory(broker: BrokerRegistration, request: BrokerHeartbeatRequest) -> bool:
    return bool(broker.log_dirs) and set(broker.log_dirs) <= set(request.offline_log_dirs)


def _next_state(
    view: View,
    context: BrokerInputs,
    broker: BrokerRegistration,
    request: BrokerHeartbeatRequest,
    is_caught_up: bool,
) -> BrokerState:
    if broker.fenced:
        if request.want_shut_down:
            return BrokerState.SHUTDOWN_NOW
        if _has_no_directory(broker, request):
            return BrokerState.FENCED
        return BrokerState.UNFENCED if is_caught_up and not request.want_fence else BrokerState.FENCED
    if broker.in_controlled_shutdown:
        gone = not leads_any_partition(view.image, broker.broker_id)
        may_go = gone and context.heartbeats.may_shut_down(view.image, broker.broker_id)
        return BrokerState.SHUTDOWN_NOW if may_go else BrokerState.CONTROLLED_SHUTDOWN
    if request.want_shut_down:
        if request.want_fence or not leads_any_partition(view.image, broker.broker_id):
            return BrokerState.SHUTDOWN_NOW
        return BrokerState.CONTROLLED_SHUTDOWN
    must_fence = request.want_fence or _has_no_directory(broker, request)
    return BrokerState.FENCED if must_fence else BrokerState.UNFENCED


def _transition(view: View, broker: BrokerRegistration, state: BrokerState) -> list[Message]:
    match state:
        case BrokerState.FENCED | BrokerState.SHUTDOWN_NOW:
            return [] if broker.fenced else _fence(view, broker)
        case BrokerState.UNFENCED:
            return _unfence(view, broker) if broker.fenced else []
        case BrokerState.CONTROLLED_SHUTDOWN:
            return [] if broker.in_controlled_shutdown else _begin_shutdown(view, broker)
        case _:
            assert_never(state)


def _fence(
    view: View, broker: BrokerRegistration, is_incomplete: Callable[[Topic], bool] = lambda topic: False
) -> list[Message]:
    change = r.BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=FENCE
    )
    return [change, *changes_without_broker(_after(view, change), broker.broker_id, is_incomplete)]


def _unfence(view: View, broker: BrokerRegistration) -> list[Message]:
    change = r.BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=UNFENCE
    )
    return [change, *changes_with_broker(_after(view, change), broker.broker_id)]


def _begin_shutdown(view: View, broker: BrokerRegistration) -> list[Message]:
    change = r.BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        in_controlled_shutdown=ENTER_CONTROLLED_SHUTDOWN,
    )
    return [change, *changes_without_broker(_after(view, change), broker.broker_id)]


def _after(view: View, record: Message) -> View:
    return view_after(view, image_of([record], view.image))


def fence_expired(view: View, context: BrokerInputs) -> list[Message]:
    """Fence the first broker whose session has expired. The next call fences the next broker with an expired
    session."""
    expired = context.heartbeats.expired(view.image, context.now_ms)
    if not expired:
        return []
    broker = view.image.brokers[expired[0]]
    return _fence(view, broker)


def fence_ended(view: View, context: BrokerInputs, broker: BrokerRegistration) -> list[Message]:
    """Fence a broker whose process has ended, before its session expires."""
    context.heartbeats.end_session(broker.broker_id)
    return _fence(view, broker)


def unregister_broker(
    view: View, context: BrokerInputs, request: UnregisterBrokerRequest
) -> ControllerResult:
    """Remove a broker permanently. Raises ``KafkaError(broker_id_not_registered)``."""
    broker = view.image.brokers.get(request.broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.broker_id_not_registered, f"Broker {request.broker_id} is not registered.")
    records = [] if broker.fenced else _fence(view, broker)
    records.append(r.UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch))
    context.heartbeats.forget(broker.broker_id)
    return ControllerResult(UnregisterBrokerResponse(error_message=None), records)


def registered(view: View, broker_id: int, epoch: int) -> BrokerRegistration:
    """Return the registration of the broker that sent a request.

    Raises ``KafkaError``: broker_id_not_registered, or stale_broker_epoch if the request comes from an older
    incarnation.
    """
    broker = view.image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.broker_id_not_registered, f"Broker {broker_id} is not registered.")
    if broker.epoch != epoch:
        raise KafkaError(
            ErrorCode.stale_broker_epoch, f"Broker {broker_id} has epoch {broker.epoch}, not {epoch}."
        )
    return broker


def register_controller(view: View, request: ControllerRegistrationRequest) -> ControllerResult:
    """Register a controller node (KIP-919).

    Raises ``KafkaError(unsupported_version)`` when the node does not support the present level of
    ``metadata.version`` or of one of Moldau's own features.
    """
    level = view.image.metadata_version
    check_knows_own_levels(
        view.image,
        f"Controller {request.controller_id}",
        _supported(request.features),
        ErrorCode.unsupported_version,
    )
    for feature in request.features:
        if feature.name == METADATA_VERSION_FEATURE and not (
            feature.min_supported_version <= level <= feature.max_supported_version
        ):
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"Controller {request.controller_id} does not support {METADATA_VERSION_FEATURE} {level}.",
            )
    record = r.RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=request.zk_migration_ready,
        end_points=[
            r.ControllerEndpoint(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=listener.security_protocol,
            )
            for listener in request.listeners
        ],
        features=[
            r.ControllerFeature(
                name=feature.name,
                min_supported_version=feature.min_supported_version,
                max_supported_version=feature.max_supported_version,
            )
            for feature in request.features
        ],
    )
    return ControllerResult(ControllerRegistrationResponse(error_message=None), [record])
