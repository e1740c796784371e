"""The calls about objects: describing, closing and handing over."""

from collections.abc import Sequence
from typing import Any, Final

from moldau.coordinators.diskless import calls
from moldau.coordinators.diskless.calls.declaration import DisklessCall, Fields
from moldau.coordinators.diskless.calls.port import ServedCalls
from moldau.protocol.own.diskless import close_files as close_wire
from moldau.protocol.own.diskless import describe_files as describe_wire
from moldau.protocol.own.diskless import hand_over as hand_over_wire
from moldau.protocol.own.diskless import oldest_file as oldest_wire
from moldau.protocol.own.rights import Right
from moldau.protocol.rows import Cut
from moldau.runtime import ErrorCode, KafkaError

FILES_MAX: Final = 10_000
"""Maximum number of files in a response that lists files. The command asks for pages of 1,000 files."""

# -- describe files ----------------------------------------------------------------------------


def _describe_fields(call: calls.DescribeFilesCall, version: int) -> Fields:
    files = None
    if call.object_keys is not None:
        files = [describe_wire.DisklessDescribeFileEntry(object_key=key) for key in call.object_keys]
    return {"files": files, "after_key": call.after_key, "limit": call.limit}


def _describe_arguments(request: Any) -> calls.DescribeFilesCall:
    keys = None if request.files is None else [entry.object_key for entry in request.files]
    if not 0 < request.limit <= FILES_MAX:
        raise KafkaError(ErrorCode.invalid_request, f"The limit of files must be from 1 to {FILES_MAX}.")
    return calls.DescribeFilesCall(keys, request.after_key, request.limit)


async def _describe(
    coordinators: ServedCalls, coordinator_id: int, call: calls.DescribeFilesCall
) -> list[calls.DescribedFile]:
    if call.object_keys is None:
        return await coordinators.list_files(coordinator_id, call.after_key, call.limit)
    return await coordinators.describe_files(coordinator_id, call.object_keys)


def _described_fields(found: Sequence[calls.DescribedFile], version: int) -> Fields:
    files = [
        describe_wire.DisklessDescribeFileResult(
            object_key=file.object_key,
            has_live_batches=file.has_live_batches,
            is_known=file.is_known,
            is_closed=file.is_closed,
            file_size=file.size_bytes,
            used_bytes=file.used_bytes,
            live_batches=file.live_batches,
            created_ms=file.created_ms,
            is_owned=file.is_owned,
            next_owner_ids=file.next_owner_ids,
            unused_since_ms=file.unused_since_ms,
        )
        for file in found
    ]
    return {"files": files}


def _described(response: Any) -> list[calls.DescribedFile]:
    return [
        calls.DescribedFile(
            row.object_key,
            row.is_known,
            row.is_closed,
            row.has_live_batches,
            row.file_size,
            row.used_bytes,
            row.live_batches,
            row.created_ms,
            row.is_owned,
            tuple(row.next_owner_ids),
            row.unused_since_ms,
        )
        for row in response.files
    ]


DESCRIBE_FILES: Final = DisklessCall(
    request=describe_wire.REQUEST,
    response=describe_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_describe,
    request_fields=_describe_fields,
    arguments=_describe_arguments,
    response_fields=_described_fields,
    result=_described,
    cuts=(Cut(("files",), ("files",)),),
)

# -- oldest file -------------------------------------------------------------------------------

OLDEST_FILE: Final = DisklessCall(
    request=oldest_wire.REQUEST,
    response=oldest_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=lambda coordinators, coordinator_id, nothing: coordinators.oldest_file(coordinator_id),
    request_fields=lambda nothing, version: {},
    arguments=lambda request: None,
    response_fields=lambda created_ms, version: {"created_ms": -1 if created_ms is None else created_ms},
    result=lambda response: None if response.created_ms < 0 else int(response.created_ms),
)

# -- close files -------------------------------------------------------------------------------


def _closed_fields(results: Sequence[calls.ClosedFile], version: int) -> Fields:
    files = [
        close_wire.DisklessClosedFile(
            object_key=file.object_key, error_code=file.error, error_message=file.message
        )
        for file in results
    ]
    return {"files": files}


def _closed(response: Any) -> list[calls.ClosedFile]:
    return [calls.ClosedFile(row.object_key, row.error_code, row.error_message) for row in response.files]


CLOSE_FILES: Final = DisklessCall(
    request=close_wire.REQUEST,
    response=close_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=lambda coordinators, coordinator_id, keys: coordinators.close_files(coordinator_id, keys),
    request_fields=lambda keys, version: {"object_keys": list(keys)},
    arguments=lambda request: request.object_keys,
    response_fields=_closed_fields,
    result=_closed,
    cuts=(Cut(("object_keys",), ("files",)),),
)

# -- hand over ---------------------------------------------------------------------------------


def _hand_over_fields(files: Sequence[calls.FileToHandOver], version: int) -> Fields:
    rows = [
        hand_over_wire.DisklessHandedOverFile(
            object_key=file.object_key,
            file_size=file.size_bytes,
            created_ms=file.created_ms,
            remaining_owner_ids=list(file.remaining_owner_ids),
        )
        for file in files
    ]
    return {"files": rows}


def _hand_over_arguments(request: Any) -> Sequence[calls.FileToHandOver]:
    return [
        calls.FileToHandOver(file.object_key, file.remaining_owner_ids, file.file_size, file.created_ms)
        for file in request.files
    ]


async def _take_over(
    coordinators: ServedCalls, coordinator_id: int, files: Sequence[calls.FileToHandOver]
) -> Sequence[str]:
    for file in files:
        await coordinators.take_over(coordinator_id, file)
    return [file.object_key for file in files]


def _handed_over_fields(keys: Sequence[str], version: int) -> Fields:
    return {"files": [hand_over_wire.DisklessHandedOverResult(object_key=key) for key in keys]}


def _handed_over(response: Any) -> Sequence[str]:
    return [row.object_key for row in response.files]


HAND_OVER: Final = DisklessCall(
    request=hand_over_wire.REQUEST,
    response=hand_over_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_take_over,
    request_fields=_hand_over_fields,
    arguments=_hand_over_arguments,
    response_fields=_handed_over_fields,
    result=_handed_over,
    cuts=(Cut(("files",), ("files",)),),
)
