"""The table of the APIs whose requests a controller decides. It has one row for each API. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from moldau.cluster.decisions import brokers, configs, features, producer_ids, refusals, topics
from moldau.cluster.decisions.brokers import BrokerInputs
from moldau.cluster.decisions.chunks import assignments, creation, removal, reports
from moldau.cluster.decisions.decision_cost import (
    LARGE_ROWS,
    added_partitions,
    assigned_replicas,
    chunks_of_partitions,
    created_partitions,
    ended_replicas,
    inner_rows,
    replicas_changed_by_heartbeat,
)
from moldau.cluster.decisions.partitions import (
    alter_partition,
    create_partitions,
    directories,
    election_causes,
    reassignments,
)
from moldau.cluster.decisions.view import ControllerResult, View
from moldau.cluster.image.image import MetadataImage
from moldau.protocol.api import OWN_API_KEY_MIN
from moldau.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from moldau.protocol.messages.alter_configs import AlterConfigsRequest
from moldau.protocol.messages.alter_partition import AlterPartitionRequest
from moldau.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from moldau.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest
from moldau.protocol.messages.controller_registration import ControllerRegistrationRequest
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest
from moldau.protocol.messages.update_features import UpdateFeaturesRequest
from moldau.protocol.own.chunks.alter_chunk_assignments import AlterChunkAssignmentsRequest
from moldau.protocol.own.chunks.create_chunks import CreateChunksRequest
from moldau.protocol.own.chunks.drop_chunks import DropChunksRequest
from moldau.protocol.own.chunks.report_chunks import ReportChunksRequest
from moldau.protocol.own.rights import CLUSTER_RIGHTS, Right
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode

FEW_ROWS_PARSED_BYTES: Final = 192 * 1024
"""The memory limit, in bytes, of a parsed request. It applies to the APIs whose requests usually have few
entries. The limit is low, because an entry of a few bytes in such a request may need hundreds of bytes in the
response.
"""

Decide = Callable[[View, BrokerInputs, Any], ControllerResult]


@dataclass(frozen=True, slots=True)
class DecidedApi:
    """An API whose requests the controller decides."""

    decide: Decide
    size: Callable[[Any, MetadataImage], int] | None = None
    """Returns the number of entries that a request reads or changes. A large request is decided on a worker
    thread. ``None`` means that the request is always small."""
    refuse_rows: Callable[[Any, ErrorCode, str | None], Message] | None = None
    """Makes a response with an error in every entry. It is needed if the response has no error field of its
    own."""
    parsed_bytes_max: int | None = None
    """Maximum memory of a parsed request, like the field of the same name in ``Served``
    (``network/served.py``)."""
    right: Right | None = None
    """The right that a caller of the API needs. The controller's listener checks it. Only our own APIs have
    this value."""


def _elect_leaders(view: View, _context: BrokerInputs, request: ElectLeadersRequest) -> ControllerResult:
    response, records = election_causes.elect_leaders(view, request)
    return ControllerResult(response, records)


DECISIONS: Final[dict[type[Message], DecidedApi]] = {
    CreateTopicsRequest: DecidedApi(
        lambda view, _, request: topics.create_topics(view, request),
        size=created_partitions,
        refuse_rows=refusals.refuse_create_topics,
    ),
    DeleteTopicsRequest: DecidedApi(
        lambda view, _, request: topics.delete_topics(view, request),
        size=lambda request, _: len(request.topics) + len(request.topic_names),
        refuse_rows=refusals.refuse_delete_topics,
        parsed_bytes_max=3 * 1024 * 1024,
    ),
    CreatePartitionsRequest: DecidedApi(
        lambda view, _, request: create_partitions.create_partitions(view, request),
        size=added_partitions,
        refuse_rows=refusals.refuse_create_partitions,
    ),
    AlterPartitionRequest: DecidedApi(
        lambda view, _, request: alter_partition.alter_partition(view, request),
        size=lambda request, image: inner_rows(request.topics, "partitions", image),
    ),
    AssignReplicasToDirsRequest: DecidedApi(
        lambda view, _, request: directories.assign_replicas_to_dirs(view, request),
        size=assigned_replicas,
    ),
    ElectLeadersRequest: DecidedApi(
        _elect_leaders,
        size=lambda request, image: inner_rows(request.topic_partitions, "partitions", image),
    ),
    IncrementalAlterConfigsRequest: DecidedApi(
        lambda view, _, request: configs.incremental_alter_configs(view, request),
        size=lambda request, image: inner_rows(request.resources, "configs", image),
        refuse_rows=refusals.refuse_incremental_alter_configs,
        parsed_bytes_max=1024 * 1024,
    ),
    AlterConfigsRequest: DecidedApi(
        lambda view, _, request: configs.alter_configs(view, request),
        size=lambda request, image: inner_rows(request.resources, "configs", image),
        refuse_rows=refusals.refuse_alter_configs,
        parsed_bytes_max=1024 * 1024,
    ),
    BrokerRegistrationRequest: DecidedApi(
        brokers.register_broker,
        size=ended_replicas,
    ),
    BrokerHeartbeatRequest: DecidedApi(
        brokers.heartbeat,
        size=replicas_changed_by_heartbeat,
    ),
    UnregisterBrokerRequest: DecidedApi(
        brokers.unregister_broker,
        size=lambda request, image: image.topics.replica_load.get(request.broker_id, 0),
    ),
    ControllerRegistrationRequest: DecidedApi(
        lambda view, _, request: brokers.register_controller(view, request),
        parsed_bytes_max=FEW_ROWS_PARSED_BYTES,
    ),
    AllocateProducerIdsRequest: DecidedApi(
        lambda view, _, request: producer_ids.allocate_producer_ids(view, request)
    ),
    UpdateFeaturesRequest: DecidedApi(
        lambda view, _, request: features.update_features(view, request),
        parsed_bytes_max=FEW_ROWS_PARSED_BYTES,
    ),
    AlterPartitionReassignmentsRequest: DecidedApi(
        lambda view, _, request: reassignments.alter_partition_reassignments(view, request),
        size=lambda request, image: inner_rows(request.topics, "partitions", image),
        parsed_bytes_max=3 * 1024 * 1024,
    ),
    ListPartitionReassignmentsRequest: DecidedApi(
        lambda view, _, request: reassignments.list_partition_reassignments(view, request),
        size=lambda request, image: inner_rows(request.topics, "partition_indexes", image),
    ),
    CreateChunksRequest: DecidedApi(
        lambda view, _, request: creation.create_chunks(view, request),
        size=lambda request, image: inner_rows(request.topic_partitions, "broker_ids", image),
        right=Right.CLUSTER_ACTION,
    ),
    AlterChunkAssignmentsRequest: DecidedApi(
        lambda view, _, request: assignments.alter_chunk_assignments(view, request),
        size=lambda request, image: sum(1 + len(row.broker_ids or ()) for row in request.chunks),
        right=Right.ALTER_CLUSTER,
    ),
    ReportChunksRequest: DecidedApi(
        lambda view, _, request: reports.report_chunks(view, request),
        size=lambda request, _: len(request.chunks),
        right=Right.CLUSTER_ACTION,
    ),
    DropChunksRequest: DecidedApi(
        lambda view, _, request: removal.drop_chunks(view, request),
        size=chunks_of_partitions,
        right=Right.CLUSTER_ACTION,
    ),
}
"""All requests that a controller decides. Controllers serve these APIs. Brokers forward clients' requests to
a controller."""


def _by_key(decisions: Mapping[type[Message], DecidedApi]) -> dict[int, DecidedApi]:
    """Return the APIs by API key. Raises ``ValueError`` if the row of one of our own APIs does not contain a
    right on the cluster.
    """
    for request, decided in decisions.items():
        if request.API_KEY >= OWN_API_KEY_MIN and decided.right not in CLUSTER_RIGHTS:
            raise ValueError(f"{request.__name__} is our own API, and its row needs a right= on the cluster")
    return {request.API_KEY: decided for request, decided in decisions.items()}


DECIDED_APIS: Final = _by_key(DECISIONS)


def is_large(request: Message, image: MetadataImage) -> bool:
    """Whether the request is so large that a worker thread must decide it."""
    decided = DECISIONS.get(type(request))
    return decided is not None and decided.size is not None and decided.size(request, image) > LARGE_ROWS
