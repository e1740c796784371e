"""Answers to requests that were passed to the core."""

import asyncio
from typing import assert_never

from moldau.quorum.core import effects as fx
from moldau.quorum.core import events as ev
from moldau.quorum.core.messages import FetchResponse, FetchSnapshotResponse, Request, Response
from moldau.quorum.effects.event_queue import EventQueue
from moldau.quorum.stored_log import to_stored
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.snapshots.replicated_log import ReplicatedLog


class PendingReplies:
    """Owns the requests that the core has not answered yet. It reads the records for the answers from the
    log."""

    def __init__(self, log: ReplicatedLog, events: EventQueue) -> None:
        self._log = log
        self._events = events
        self._last_id = 0
        self._pending: dict[int, asyncio.Future[Response]] = {}

    async def ask(self, request: Request) -> Response:
        """Submit a request and return the core's answer. Raises ``KafkaError`` when the driver ends."""
        self._last_id += 1
        request_id = self._last_id
        reply: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = reply
        self._events.submit(ev.RequestReceived(request_id, request))
        try:
            return await reply
        finally:
            self._pending.pop(request_id, None)

    def run(self, effect: fx.SendReply | fx.ReplyWithRecords | fx.ReplyWithSnapshot) -> None:
        """Answer a request, unless its sender no longer waits."""
        match effect:
            case fx.SendReply(request_id, response):
                self._reply(request_id, response)
            case fx.ReplyWithRecords(request_id, fetched, offset, max_bytes):
                # The bytes are copied, because the end of the log may be truncated while the answer waits in
                # a socket's buffer.
                views = self._log.read(offset, max_bytes).views
                self._reply(request_id, _with_records(fetched, b"".join(views)))
            case fx.ReplyWithSnapshot(request_id, part, max_bytes):
                reader = self._log.open_snapshot(to_stored(part.snapshot_id))
                if reader is None:
                    self._reply(request_id, _with_data(part, b"", ErrorCode.snapshot_not_found))
                    return
                try:
                    data = bytes(reader.read(part.position, max_bytes))
                finally:
                    reader.close()
                self._reply(request_id, _with_data(part, data, ErrorCode.none))
            case _:
                assert_never(effect)

    def _reply(self, request_id: int, response: Response) -> None:
        reply = self._pending.get(request_id)
        if reply is not None and not reply.done():
            reply.set_result(response)

    def fail(self, error: KafkaError) -> None:
        """Fail all requests, because the driver ends."""
        for reply in self._pending.values():
            if not reply.done():
                reply.set_exception(error)


def _with_records(response: FetchResponse, records: bytes) -> FetchResponse:
    return FetchResponse(
        error=response.error,
        leader_id=response.leader_id,
        epoch=response.epoch,
        high_watermark=response.high_watermark,
        log_start_offset=response.log_start_offset,
        records=(records,) if records else (),
    )


def _with_data(response: FetchSnapshotResponse, data: bytes, error: ErrorCode) -> FetchSnapshotResponse:
    return FetchSnapshotResponse(
        error=error,
        leader_id=response.leader_id,
        epoch=response.epoch,
        snapshot_id=response.snapshot_id,
        size_bytes=response.size_bytes,
        position=response.position,
        data=data,
    )
