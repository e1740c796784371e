"""The Envelope (KIP-590). A broker puts a request into an Envelope, and the controller extracts the
request."""

import pytest

from moldau.cluster.controller.channel import Caller
from moldau.cluster.controller.envelope import open_response, seal, unwrap, wrap
from moldau.network.context import Principal
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.describe_quorum import DescribeQuorumRequest
from moldau.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from moldau.protocol.messages.update_features import UpdateFeaturesResponse
from moldau.runtime import ErrorCode, KafkaError

ALICE = Caller(Principal("User", "alice"), "admin-1", "10.0.0.7")


def test_a_request_keeps_its_client_and_the_rest_of_its_time() -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=3)], timeout_ms=30_000)
    envelope = wrap(request, 7, ALICE, 1_200)
    assert envelope.client_host_address == bytes((10, 0, 0, 7))
    # The fields of Kafka's DefaultPrincipalData in version 0, without the version number before them.
    assert envelope.request_principal == b"\x00\x00" + b"\x05User" + b"\x06alice" + b"\x00" + b"\x00"
    header, inner, caller = unwrap(envelope)
    assert (header.api_key, header.api_version, header.client_id) == (ApiKey.CREATE_TOPICS, 7, "admin-1")
    assert caller == ALICE
    assert (inner.topics[0].name, inner.timeout_ms) == ("t", 1_200)
    assert str(caller) == "User:alice (client 'admin-1' at 10.0.0.7)"


@pytest.mark.parametrize("host", ["::1", "10.0.0.7", ""])
def test_an_envelope_has_ipv4_and_ipv6_addresses(host: str) -> None:
    caller = Caller(Principal("User", "ANONYMOUS"), None, host)
    assert unwrap(wrap(DescribeQuorumRequest(), 2, caller, 1)).caller == caller


def test_an_answer_comes_back_in_the_client_s_version() -> None:
    header = unwrap(wrap(DescribeQuorumRequest(), 2, ALICE, 1)).header._replace(
        api_key=ApiKey.UPDATE_FEATURES, api_version=2
    )
    sealed = seal(header, UpdateFeaturesResponse(error_code=ErrorCode.invalid_request, error_message="no"))
    answer = open_response(sealed, ApiKey.UPDATE_FEATURES, 2)
    assert (answer.error_code, answer.error_message) == (ErrorCode.invalid_request, "no")
    with pytest.raises(KafkaError) as refused:
        open_response(EnvelopeResponse(error_code=ErrorCode.not_controller), ApiKey.UPDATE_FEATURES, 2)
    assert refused.value.code is ErrorCode.not_controller
    with pytest.raises(KafkaError, match="malformed"):
        open_response(EnvelopeResponse(response_data=b"\0"), ApiKey.UPDATE_FEATURES, 2)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"request_principal": b""}, ErrorCode.principal_deserialization_failure),
        ({"request_principal": b"\0\1\0"}, ErrorCode.principal_deserialization_failure),
        ({"request_data": b"\0\x13\0\7"}, ErrorCode.invalid_request),
        ({"client_host_address": b"123"}, ErrorCode.invalid_request),
    ],
)
def test_an_envelope_that_cannot_be_read_gets_the_fitting_error(
    changes: dict[str, bytes], code: ErrorCode
) -> None:
    good = wrap(DescribeQuorumRequest(), 2, ALICE, 1)
    values = {
        name: getattr(good, name) for name in ("request_data", "request_principal", "client_host_address")
    }
    with pytest.raises(KafkaError) as refused:
        unwrap(EnvelopeRequest(**{**values, **changes}))
    assert refused.value.code is code
