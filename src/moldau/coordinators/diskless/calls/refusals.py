"""Error codes with a special meaning in the results of ``commit_file``.

FORGOTTEN and NUMBER_PASSED are errors of the whole call. HELD and UNGUARDED are errors of a single batch.
"""

from typing import Final

from moldau.runtime import ErrorCode

DEFINITE_REFUSALS: Final = frozenset(
    {ErrorCode.resource_not_found, ErrorCode.invalid_timestamp, ErrorCode.invalid_request}
)
"""After these errors of ``commit_file`` no batch of the file is committed, now or later.

RESOURCE_NOT_FOUND means that the object was closed. INVALID_TIMESTAMP means that the object is older than
``max_commit_age_ms``. INVALID_REQUEST means that the call is malformed. After any other error the outcome is
unknown, so the caller repeats the call.
"""

FORGOTTEN: Final = ErrorCode.operation_not_attempted
"""Error code for a ``commit_file`` call with a file that is so old that the coordinator may have forgotten
its result. This call changed nothing. If an earlier call was sent, its outcome stays unknown.
"""

NUMBER_PASSED: Final = ErrorCode.invalid_update_version
"""Error code for a ``commit_file`` call with a number that the coordinator has already passed. The
coordinator has no stored result of this file. This call changed nothing. If an earlier call for the file was
sent, its outcome stays unknown. The coordinator also refuses all lower numbers of this broker epoch.
"""

HELD: Final = ErrorCode.not_leader_or_follower
"""Error code of a batch that gets no offset yet, because an earlier batch of its producer is missing.

For about a second, the broker repeats the commit of this batch together with the commit of each of the
broker's next objects. After that, the broker refuses the batch with an error after which the producer sends
the batch again.
"""

UNGUARDED: Final = ErrorCode.not_enough_replicas
"""Error code of a transactional batch without a valid guard. The batch is not committed. Its commit can be
repeated after the broker has got another guard and has verified the transaction at the transaction
coordinator again.
"""
