"""The call that commits a file. Version 0 has the KIP's structures. Version 1 adds columns, version 2 adds
guards, and version 3 adds the order of a broker's commits."""

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Final

from moldau.coordinators.diskless import calls
from moldau.coordinators.diskless.calls.declaration import DisklessCall, Fields, Lane
from moldau.coordinators.diskless.calls.epochs import epochs_of_file
from moldau.coordinators.diskless.calls.port import ServedCalls
from moldau.coordinators.diskless.codecs.batch_columns import (
    decode_batches,
    decode_results,
    encode_batches,
    encode_results,
)
from moldau.coordinators.diskless.codecs.columns import ColumnError
from moldau.protocol.own.diskless import commit_file as wire
from moldau.protocol.own.rights import Right
from moldau.runtime import ErrorCode, KafkaError

COLUMNS_VERSION: Final = 1
"""First version with batches and results as columns."""
GUARDS_VERSION: Final = 2
"""First version with guards. An older coordinator refuses transactional batches."""

ORDER_VERSION: Final = 3
"""First version with the order of a broker's commits. If the coordinator does not support this version, the
broker sends it only one commit at a time."""

REQUEST_BATCHES_MAX: Final = 5_000
"""Maximum number of batches in a request. The coordinator decides on all batches of a request in one
iteration of the event loop. For this number, the decision takes about 0.1 s of CPU time. Brokers send at most
4,000."""

NUMBER_MAX: Final = 1 << 62
"""Highest number of a commit that a request may contain. Brokers count from 0. Without this limit, the next
number after it could need more than 64 bits."""


def _fields(call: calls.CommitFileCall, version: int) -> Fields:
    place = call.place
    order: Fields = {}
    if place is not None and version >= ORDER_VERSION:
        order = {
            "broker_epoch": place.broker_epoch,
            "commit_number": place.number,
            "open_from": place.open_from,
        }
    elif place is not None and place.number > place.open_from:
        message = f"the coordinator has version {version}: commits are sent to it one after the other"
        raise KafkaError(ErrorCode.unsupported_version, message)
    return {
        **order,
        "object_key": call.object_key,
        "object_format": call.object_format,
        "file_size": call.size_bytes,
        "created_ms": call.created_ms,
        "uploader_broker_id": call.uploader_broker_id,
        "owner_ids": call.owner_ids,
        "columns": encode_batches(call.batches, with_guards=version >= GUARDS_VERSION),
    }


def _arguments(request: Any) -> calls.CommitFileCall:
    if request.columns:
        batches = batches_of(request.columns)
    elif len(request.batches) > REQUEST_BATCHES_MAX:
        most = REQUEST_BATCHES_MAX
        raise KafkaError(ErrorCode.invalid_request, f"A request has at most {most} batches.")
    else:
        batches = [
            calls.BatchToCommit(
                batch.topic_id,
                batch.partition_index,
                batch.request_id,
                batch.byte_offset,
                batch.size,
                batch.last_offset - batch.base_offset,
                batch.last_offset - batch.base_offset + 1,
                batch.batch_max_timestamp,
                batch.timestamp_type,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.last_sequence,
                calls.TRANSACTIONAL if batch.is_transactional else 0,
            )
            for batch in request.batches
        ]
    return calls.CommitFileCall(
        request.object_key,
        request.file_size,
        request.created_ms,
        request.uploader_broker_id,
        batches,
        tuple(request.owner_ids),
        request.object_format,
        place_of(request),
    )


def batches_of(columns: bytes, at_most: int = REQUEST_BATCHES_MAX) -> list[calls.BatchToCommit]:
    """Read the batches of a request. The request must not contain more than ``at_most`` batches. Raises
    INVALID_REQUEST."""
    try:
        return decode_batches(columns, at_most)
    except ColumnError as error:
        raise KafkaError(ErrorCode.invalid_request, f"The batches cannot be read: {error}.") from error


def place_of(fields: Any) -> calls.CommitPlace | None:
    """Read the place of a commit from a request or a part of a request. Raises INVALID_REQUEST."""
    if fields.commit_number < 0:
        return None
    place = calls.CommitPlace(fields.broker_epoch, fields.commit_number, fields.open_from)
    if not 0 <= place.open_from <= place.number:
        raise KafkaError(ErrorCode.invalid_request, "The commit's number is below the open ones.")
    if place.number > NUMBER_MAX:
        raise KafkaError(ErrorCode.invalid_request, f"{place.number} is above the highest commit number.")
    return place


def commit_with_backlog(
    coordinators: ServedCalls, coordinator_id: int, call: calls.CommitFileCall
) -> Awaitable[calls.CommitFileResult]:
    """Commit a file, and add the WAL backlog of the coordinator to the result. The commit begins in this call
    and not in the later ``await``, so commits take effect in the order of their requests."""
    return _add_backlog(coordinators, coordinator_id, coordinators.commit_file(coordinator_id, call))


async def _add_backlog(
    coordinators: ServedCalls, coordinator_id: int, committed: Awaitable[calls.CommitFileResult]
) -> calls.CommitFileResult:
    result = await committed
    return replace(result, backlog_bytes=coordinators.backlogs.size_bytes(coordinator_id))


def _result_fields(result: calls.CommitFileResult, version: int) -> Fields:
    if version >= COLUMNS_VERSION:
        return {"columns": encode_results(result.batches), "backlog_bytes": result.backlog_bytes}
    rows = [
        wire.DisklessCommitBatchResult(
            error_code=batch.error,
            error_message=batch.message,
            assigned_base_offset=batch.base_offset,
            log_append_time=batch.log_append_time_ms,
            log_start_offset=batch.log_start_offset,
            is_duplicate=batch.is_duplicate,
        )
        for batch in result.batches
    ]
    return {"batches": rows}


COMMIT_FILE: Final = DisklessCall(
    request=wire.REQUEST,
    response=wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=commit_with_backlog,
    request_fields=_fields,
    arguments=_arguments,
    response_fields=_result_fields,
    result=lambda response: calls.CommitFileResult(decode_results(response.columns), response.backlog_bytes),
    named_epochs=epochs_of_file,
    version_min=COLUMNS_VERSION,
    lane=lambda call: Lane.COMMITS,
)
