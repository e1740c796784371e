"""Error codes with a special meaning in the results of ``commit_file``.

FORGOTTEN and NUMBER_PASSED are errors of the whole call. HELD and UNGUARDED are errors of a single batch.
"""

from typing import Final

from moldau.runtime import ErrorCode

DEFINITE_REFUSALS: Final = frozenset(
    {ErrorCode.resource_not_found, ErrorCode.invalid_timestamp, ErrorCode.invalid_request}
)
"""After these errors of ``commit_file`` no batch of the file is committed, now or later.

RESOURCE_NOT_FOUND means that the object was closed. INVALID_TIMESTAMP means that the object is older than the
max commit age. INVALID_REQUEST means that the call is malformed. After any other error the outcome is
unknown, so the caller repeats the call.
"""

FORGOTTEN: Final = ErrorCode.operation_not_attempted
"""Error code for a ``commit_file`` call with an old file. The coordinator has already removed the result of
this file.

This call did nothing. If an earlier call was sent, its outcome stays unknown.
"""

NUMBER_PASSED: Final = ErrorCode.invalid_update_version
"""Error code for a ``commit_file`` call with a number that the coordinator has already passed. The
coordinator does not know the result of the file.

This call did nothing. If an earlier call was sent, its outcome stays unknown. The coordinator refuses all
lower numbers of this broker epoch, too.
"""

HELD: Final = ErrorCode.not_leader_or_follower
"""Error code of a batch that gets no offset yet, because an earlier batch of its producer is missing.

For about a second, the broker commits the batch again together with each of the broker's next objects. After
that the broker makes the producer send the batch again.
"""

UNGUARDED: Final = ErrorCode.not_enough_replicas
"""Error code of a transactional batch without a valid guard. The batch is not committed, and may be sent
again.

Before the broker commits the batch again, it gets another guard, and asks the transaction's coordinator
again.
"""
