"""Maps errors of a coordinator's log to errors for the clients of the coordinator."""

from moldau.runtime import ErrorCode, KafkaError

_NOT_AVAILABLE = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
    }
)
_NOT_COORDINATOR = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error})
_TOO_LARGE = frozenset(
    {ErrorCode.message_too_large, ErrorCode.record_list_too_large, ErrorCode.invalid_fetch_size}
)


def coordinator_error(error: BaseException) -> KafkaError:
    """The error for a client of a coordinator. With this error, the client retries or looks for the
    coordinator again.

    For example, clients do not handle NOT_LEADER_OR_FOLLOWER in a JoinGroup response.
    """
    if not isinstance(error, KafkaError):
        return KafkaError(ErrorCode.coordinator_not_available, "The coordinator's log failed.")
    if error.code in _NOT_AVAILABLE:
        return KafkaError(ErrorCode.coordinator_not_available, error.message)
    if error.code in _NOT_COORDINATOR:
        return KafkaError(ErrorCode.not_coordinator, error.message)
    if error.code in _TOO_LARGE:
        return KafkaError(ErrorCode.unknown_server_error, error.message)
    return error
