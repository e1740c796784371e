"""The call that commits the parts of a file at several coordinators of one broker."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from moldau.coordinators.diskless.calls import CommitFileCall, CommitFileResult, CommitPlace
from moldau.coordinators.diskless.calls.declaration import DisklessCall, Fields, Lane
from moldau.coordinators.diskless.calls.epochs import epochs_of_parts
from moldau.coordinators.diskless.calls.port import ServedCalls
from moldau.coordinators.diskless.calls.subjects.commit import (
    REQUEST_BATCHES_MAX,
    batches_of,
    commit_with_backlog,
    place_of,
)
from moldau.coordinators.diskless.codecs.batch_columns import decode_results, encode_batches, encode_results
from moldau.protocol.own.diskless import commit_parts as wire
from moldau.protocol.own.rights import Right
from moldau.runtime import ErrorCode, KafkaError

CommitParts: TypeAlias = Sequence[tuple[int, CommitFileCall]]
"""Pairs of a coordinator and a call, for one file. The calls differ only in their batches, and in their
places in the order of commits.
"""

PartResults: TypeAlias = Sequence[tuple[int, CommitFileResult | KafkaError]]
"""The result or the error of each part, with its coordinator."""

_NO_PLACE: Final = CommitPlace(-1, -1, -1)

PATIENCE_S: Final = 0.5
"""When the first result of a part is known, the response is delayed for at most this time, in seconds, to get
the results of the other parts. Then the response contains the known results, and the requesting broker
repeats the commits of the other parts."""
_LATE: Final = KafkaError(ErrorCode.request_timed_out, "The outcome of this part is not known yet.")


def _fields(parts: CommitParts, version: int) -> Fields:
    file = parts[0][1]
    return {
        "object_key": file.object_key,
        "object_format": file.object_format,
        "file_size": file.size_bytes,
        "created_ms": file.created_ms,
        "uploader_broker_id": file.uploader_broker_id,
        "owner_ids": file.owner_ids,
        "parts": [_part(coordinator_id, call) for coordinator_id, call in parts],
    }


def _part(coordinator_id: int, call: CommitFileCall) -> wire.DisklessCommitPart:
    place = call.place or _NO_PLACE
    return wire.DisklessCommitPart(
        coordinator_id=coordinator_id,
        columns=encode_batches(call.batches, with_guards=True),
        broker_epoch=place.broker_epoch,
        commit_number=place.number,
        open_from=place.open_from,
    )


def _arguments(request: Any) -> CommitParts:
    file = CommitFileCall(
        request.object_key,
        request.file_size,
        request.created_ms,
        request.uploader_broker_id,
        (),
        tuple(request.owner_ids),
        request.object_format,
    )
    if not request.parts:
        raise KafkaError(ErrorCode.invalid_request, "The file has no parts.")
    parts: list[tuple[int, CommitFileCall]] = []
    room = REQUEST_BATCHES_MAX
    for part in request.parts:
        batches = batches_of(part.columns, room)
        room -= len(batches)
        parts.append((part.coordinator_id, replace(file, batches=batches, place=place_of(part))))
    return parts


async def _serve(coordinators: ServedCalls, _: int, parts: CommitParts) -> PartResults:
    # All commits of the request begin here, before any of them is awaited. Therefore the commits of several
    # requests take effect in the order of the requests.
    begun = [
        asyncio.ensure_future(_settled(commit_with_backlog(coordinators, coordinator_id, call)))
        for coordinator_id, call in parts
    ]
    await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
    late = (await asyncio.wait(begun, timeout=PATIENCE_S))[1]
    return [
        (coordinator_id, _LATE if commit in late else commit.result())
        for (coordinator_id, _), commit in zip(parts, begun, strict=True)
    ]


async def _settled(commit: Awaitable[CommitFileResult]) -> CommitFileResult | KafkaError:
    try:
        return await commit
    except KafkaError as error:
        return error


def _result_fields(results: PartResults, version: int) -> Fields:
    return {"parts": [_result(coordinator_id, result) for coordinator_id, result in results]}


def _result(coordinator_id: int, result: CommitFileResult | KafkaError) -> wire.DisklessCommitPartResult:
    if isinstance(result, KafkaError):
        return wire.DisklessCommitPartResult(
            coordinator_id=coordinator_id, error_code=result.code, error_message=result.message
        )
    columns = encode_results(result.batches)
    return wire.DisklessCommitPartResult(
        coordinator_id=coordinator_id, columns=columns, backlog_bytes=result.backlog_bytes
    )


def _results(response: Any) -> PartResults:
    return [
        (
            part.coordinator_id,
            KafkaError(part.error_code, part.error_message)
            if part.error_code.value
            else CommitFileResult(decode_results(part.columns), part.backlog_bytes),
        )
        for part in response.parts
    ]


COMMIT_PARTS: Final = DisklessCall(
    request=wire.REQUEST,
    response=wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_serve,
    request_fields=_fields,
    arguments=_arguments,
    response_fields=_result_fields,
    result=_results,
    named_epochs=epochs_of_parts,
    lane=lambda parts: Lane.COMMITS,
)
