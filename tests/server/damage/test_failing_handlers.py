"""If a handler raises an unexpected exception, the client gets an error, and the node's health page reports
the exception."""

import asyncio
from typing import Any

from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.api import ApiKey, Scope
from moldau.protocol.codec import decode_response, encode_request
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.unexpected import UnexpectedErrors
from moldau.server.requests.dispatch import Dispatcher


def answer_of(
    fault: Exception | DescribeClusterResponse, unexpected: UnexpectedErrors, *, later: bool
) -> Any:
    """Return the response to a request whose handler raises this exception or returns this value. The handler
    does so immediately, or in a task."""

    def fail_now(context: RequestContext, request: Any) -> Any:
        if isinstance(fault, Exception):
            raise fault
        return fault

    async def fail_later(context: RequestContext, request: Any) -> Any:
        return fail_now(context, request)

    handler = fail_later if later else fail_now
    dispatcher = Dispatcher({ApiKey.DESCRIBE_CLUSTER: handler}, Scope.BROKER, unexpected=unexpected)
    body = b"".join(encode_request(ApiKey.DESCRIBE_CLUSTER, 0, DescribeClusterRequest()))
    context = RequestContext(ApiKey.DESCRIBE_CLUSTER, 0, 1, "test", ConnectionContext("c", "PLAINTEXT"))

    async def scenario() -> tuple[Any, str | None]:
        outcome = dispatcher(context, memoryview(body))
        parts = outcome if isinstance(outcome, list) else await outcome
        answer = decode_response(ApiKey.DESCRIBE_CLUSTER, 0, memoryview(b"".join(parts)))
        return answer.error_code, unexpected.problem()

    return asyncio.run(scenario())


def test_unexpected_error_is_answered_and_shown() -> None:
    for later in (False, True):
        code, problem = answer_of(ValueError("a defect"), UnexpectedErrors(), later=later)
        assert code is ErrorCode.unknown_server_error
        assert problem is not None
        assert "a defect" in problem


def test_an_answer_that_cannot_be_encoded_is_answered_and_shown() -> None:
    faulty = DescribeClusterResponse(cluster_id=None)  # type: ignore[arg-type]
    for later in (False, True):
        code, problem = answer_of(faulty, UnexpectedErrors(), later=later)
        assert code is ErrorCode.unknown_server_error
        assert problem is not None


def test_kafkas_errors_are_no_fault_of_the_node() -> None:
    for later in (False, True):
        error = KafkaError(ErrorCode.invalid_request, "no")
        assert answer_of(error, UnexpectedErrors(), later=later) == (ErrorCode.invalid_request, None)
