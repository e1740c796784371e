"""Moving replicas. Not built yet: every real move is refused, none is ever under way."""

from moldau.cluster.decisions.view import ControllerResult, View
from moldau.protocol.messages import alter_partition_reassignments as alter
from moldau.protocol.messages import list_partition_reassignments as listing
from moldau.runtime import ErrorCode

REFUSAL = "Moving replicas between brokers is not supported by this version."


def alter_partition_reassignments(
    view: View, request: alter.AlterPartitionReassignmentsRequest
) -> ControllerResult:
    """Refuse each move; cancelling one answers that none is in progress (KIP-455).

    A "move" to where the replicas are already has nothing to do and succeeds.
    """
    responses = []
    for topic in request.topics:
        known = view.image.topics.get(topic.name)
        answers = []
        for partition in topic.partitions:
            code: ErrorCode
            message: str | None
            if known is None or not 0 <= partition.partition_index < len(known.partitions):
                code, message = ErrorCode.unknown_topic_or_partition, "There is no such partition."
            elif partition.replicas is None:
                code, message = ErrorCode.no_reassignment_in_progress, "No move is in progress."
            elif list(partition.replicas) == list(known.partitions[partition.partition_index].replicas):
                code, message = ErrorCode.none, None
            else:
                code, message = ErrorCode.invalid_replica_assignment, REFUSAL
            answers.append(
                alter.ReassignablePartitionResponse(
                    partition_index=partition.partition_index, error_code=code, error_message=message
                )
            )
        responses.append(alter.ReassignableTopicResponse(name=topic.name, partitions=answers))
    return ControllerResult(
        alter.AlterPartitionReassignmentsResponse(error_message=None, responses=responses)
    )


def list_partition_reassignments(
    view: View, request: listing.ListPartitionReassignmentsRequest
) -> ControllerResult:
    """Moves in progress, as the metadata has them (another implementation's log may contain some)."""
    wanted = None
    if request.topics is not None:
        wanted = {topic.name: set(topic.partition_indexes) for topic in request.topics}
    topics = []
    for topic in view.image.topics:
        if wanted is not None and topic.name not in wanted:
            continue
        ongoing = [
            listing.OngoingPartitionReassignment(
                partition_index=index,
                replicas=partition.replicas,
                adding_replicas=partition.adding_replicas,
                removing_replicas=partition.removing_replicas,
            )
            for index, partition in enumerate(topic.partitions)
            if partition.is_reassigning and (wanted is None or index in wanted[topic.name])
        ]
        if ongoing:
            topics.append(listing.OngoingTopicReassignment(name=topic.name, partitions=ongoing))
    return ControllerResult(listing.ListPartitionReassignmentsResponse(error_message=None, topics=topics))
