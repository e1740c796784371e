"""Removes a remote segment in three steps. It writes the event that the deletion has started. When that event
is saved in the object store, it deletes the bytes. Then it writes the event that the deletion has
finished."""

from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from moldau.tiered.storage.storage_manager import RemoteStorageError
from moldau.tiered.tasks.context import RemoteTaskContext

__all__ = ["delete_objects", "delete_segment"]


async def delete_segment(
    context: RemoteTaskContext, segment: RemoteLogSegmentMetadata, *, is_saved: bool = False
) -> bool:
    """Remove the segment. Returns False while the record that made the segment unneeded is not saved in the
    object store yet. The next call then continues.

    ``is_saved`` means that the caller has already waited until that record is saved. After any failure the
    call may be repeated from the start. Raises ``RemoteStorageError`` if the remote tier fails.
    """
    if segment.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
        await context.metadata.update_remote_log_segment_metadata(
            _event(context, segment, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        )
    # No saved state of the cluster can read a copy that was never finished. Therefore its deletion does not
    # wait.
    is_unread = segment.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
    if not (is_unread or is_saved) and not context.pending_deletions.may_delete(segment.id.id):
        return False
    await delete_objects(context, segment)
    await context.metadata.update_remote_log_segment_metadata(
        _event(context, segment, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
    )
    return True


async def delete_objects(context: RemoteTaskContext, segment: RemoteLogSegmentMetadata) -> None:
    """Delete only the bytes of the segment. Raises ``RemoteStorageError`` if the remote tier fails."""
    topic = segment.id.topic
    context.meters.delete_request(topic)
    try:
        await context.storage.delete_log_segment_data(segment)
    except RemoteStorageError:
        context.meters.failed_delete(topic)
        raise
    context.on_segment_deleted(segment.id.id)


def _event(
    context: RemoteTaskContext, segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        segment.id, context.now_ms(), state, context.broker_id, segment.custom_metadata
    )
