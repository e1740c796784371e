"""Removes one remote segment: the event of its beginning, the bytes, the event of its end."""

from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from moldau.tiered.storage.storage_manager import RemoteStorageError
from moldau.tiered.tasks.surroundings import Surroundings

__all__ = ["delete_objects", "delete_segment"]


async def delete_segment(around: Surroundings, segment: RemoteLogSegmentMetadata) -> None:
    """May be repeated from the start after any failure. Raises ``RemoteStorageError``."""
    if segment.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
        await around.metadata.update_remote_log_segment_metadata(
            _event(around, segment, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        )
    await delete_objects(around, segment)
    await around.metadata.update_remote_log_segment_metadata(
        _event(around, segment, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
    )


async def delete_objects(around: Surroundings, segment: RemoteLogSegmentMetadata) -> None:
    """The bytes alone. Raises ``RemoteStorageError``."""
    topic = segment.id.topic
    around.meters.delete_request(topic)
    try:
        await around.storage.delete_log_segment_data(segment)
    except RemoteStorageError:
        around.meters.failed_delete(topic)
        raise
    around.on_segment_deleted(segment.id.id)


def _event(
    around: Surroundings, segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        segment.id, around.now_ms(), state, around.broker_id, segment.custom_metadata
    )
