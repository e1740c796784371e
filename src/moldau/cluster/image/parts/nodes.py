"""The registered brokers and controllers."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from moldau.cluster.errors import MetadataError
from moldau.cluster.image.changes import Changes
from moldau.cluster.image.parts.part import ImagePart
from moldau.cluster.image.persistent_map import PersistentMap
from moldau.cluster.image.registrations import (
    ENTER_CONTROLLED_SHUTDOWN,
    FENCE,
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    SupportedFeature,
)
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message

BrokerChanges = Changes[int, BrokerRegistration]
ControllerChanges = Changes[int, ControllerRegistration]


def _register_broker(changes: BrokerChanges, record: r.RegisterBrokerRecord) -> None:
    changes.put(
        record.broker_id,
        BrokerRegistration(
            broker_id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=tuple(sorted(record.log_dirs)),
            cordoned_log_dirs=tuple(sorted(record.cordoned_log_dirs or ())),
            is_migrating_zk_broker=record.is_migrating_zk_broker,
        ),
    )


def _unregister_broker(changes: BrokerChanges, record: r.UnregisterBrokerRecord) -> None:
    _registered(changes, record.broker_id, record.broker_epoch)
    changes.remove(record.broker_id)


def _change_broker(changes: BrokerChanges, record: r.BrokerRegistrationChangeRecord) -> None:
    broker = _registered(changes, record.broker_id, record.broker_epoch)
    if record.fenced:
        broker = replace(broker, fenced=record.fenced == FENCE)
    if record.in_controlled_shutdown:
        broker = replace(
            broker, in_controlled_shutdown=record.in_controlled_shutdown == ENTER_CONTROLLED_SHUTDOWN
        )
    if record.log_dirs:
        broker = replace(broker, log_dirs=tuple(sorted(record.log_dirs)))
    if record.cordoned_log_dirs is not None:
        broker = replace(broker, cordoned_log_dirs=tuple(sorted(record.cordoned_log_dirs)))
    changes.put(record.broker_id, broker)


def _fence_broker(changes: BrokerChanges, record: r.FenceBrokerRecord) -> None:
    changes.put(record.id, replace(_registered(changes, record.id, record.epoch), fenced=True))


def _unfence_broker(changes: BrokerChanges, record: r.UnfenceBrokerRecord) -> None:
    changes.put(record.id, replace(_registered(changes, record.id, record.epoch), fenced=False))


def _registered(changes: BrokerChanges, broker_id: int, epoch: int) -> BrokerRegistration:
    broker = changes.get(broker_id)
    if broker is None or broker.epoch != epoch:
        raise MetadataError(f"record of broker {broker_id} epoch {epoch}, which is not registered")
    return broker


def _register_controller(changes: ControllerChanges, record: r.RegisterControllerRecord) -> None:
    changes.put(
        record.controller_id,
        ControllerRegistration(
            controller_id=record.controller_id,
            incarnation_id=record.incarnation_id,
            zk_migration_ready=record.zk_migration_ready,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
        ),
    )


def _unregister_controller(changes: ControllerChanges, record: r.UnregisterControllerRecord) -> None:
    changes.remove(record.controller_id)


def _endpoints(endpoints: Iterable[Any]) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(endpoint.name, endpoint.host, endpoint.port, endpoint.security_protocol)
        for endpoint in endpoints
    )


def _features(features: Iterable[Any]) -> tuple[SupportedFeature, ...]:
    return tuple(
        sorted(
            SupportedFeature(feature.name, feature.min_supported_version, feature.max_supported_version)
            for feature in features
        )
    )


def _broker_records(brokers: PersistentMap[int, BrokerRegistration]) -> Iterator[Message]:
    for broker in brokers.values():
        yield r.RegisterBrokerRecord(
            broker_id=broker.broker_id,
            is_migrating_zk_broker=broker.is_migrating_zk_broker,
            incarnation_id=broker.incarnation_id,
            broker_epoch=broker.epoch,
            end_points=[
                r.BrokerEndpoint(
                    name=endpoint.name,
                    host=endpoint.host,
                    port=endpoint.port,
                    security_protocol=endpoint.security_protocol,
                )
                for endpoint in broker.endpoints
            ],
            features=[
                r.BrokerFeature(
                    name=feature.name,
                    min_supported_version=feature.min_level,
                    max_supported_version=feature.max_level,
                )
                for feature in broker.features
            ],
            rack=broker.rack,
            fenced=broker.fenced,
            in_controlled_shutdown=broker.in_controlled_shutdown,
            log_dirs=broker.log_dirs,
            cordoned_log_dirs=broker.cordoned_log_dirs or None,
        )


def _controller_records(controllers: PersistentMap[int, ControllerRegistration]) -> Iterator[Message]:
    for controller in controllers.values():
        yield r.RegisterControllerRecord(
            controller_id=controller.controller_id,
            incarnation_id=controller.incarnation_id,
            zk_migration_ready=controller.zk_migration_ready,
            end_points=[
                r.ControllerEndpoint(
                    name=endpoint.name,
                    host=endpoint.host,
                    port=endpoint.port,
                    security_protocol=endpoint.security_protocol,
                )
                for endpoint in controller.endpoints
            ],
            features=[
                r.ControllerFeature(
                    name=feature.name,
                    min_supported_version=feature.min_level,
                    max_supported_version=feature.max_level,
                )
                for feature in controller.features
            ],
        )


BROKERS: Final = ImagePart[PersistentMap[int, BrokerRegistration], BrokerChanges](
    name="brokers",
    begin=Changes,
    records={
        r.RegisterBrokerRecord: _register_broker,
        r.UnregisterBrokerRecord: _unregister_broker,
        r.BrokerRegistrationChangeRecord: _change_broker,
        r.FenceBrokerRecord: _fence_broker,
        r.UnfenceBrokerRecord: _unfence_broker,
    },
    to_records=_broker_records,
    versions={
        r.RegisterBrokerRecord: ((30, 4), (17, 3), (8, 2), (0, 1)),
        r.BrokerRegistrationChangeRecord: ((30, 3), (17, 2), (0, 1)),
    },
)
CONTROLLERS: Final = ImagePart[PersistentMap[int, ControllerRegistration], ControllerChanges](
    name="controllers",
    begin=Changes,
    records={
        r.RegisterControllerRecord: _register_controller,
        r.UnregisterControllerRecord: _unregister_controller,
    },
    to_records=_controller_records,
)
