"""A client listener sends a response for every API that it advertises, in every version, for any request."""

import dataclasses
import sys
import types
import typing
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from rights_of_apis import CHECKED_IF_ANY, RIGHTS, UNCHECKED
from wire import ask, ask_all

from moldau.network.authorization import (
    AclOperation,
    AclResourceType,
    AllowEveryone,
    authorized_operations,
)
from moldau.network.context import RequestContext
from moldau.protocol.api import SUPPORTED, ApiKey, Scope, scopes
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.schema import Message
from moldau.testing import Node
from request_classes import request_class

NOT_YET = {
    # Security is not supported.
    ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS, ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN, ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS,
    # Groups of KIP-848, share groups, streams groups, and the state of share groups are not supported.
    ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.SHARE_GROUP_HEARTBEAT,
    ApiKey.SHARE_GROUP_DESCRIBE, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE, ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS, ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_DESCRIBE,
    # Nothing receives telemetry of clients.
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY,
}  # fmt: skip
"""APIs that are not supported, and therefore not advertised. A client that needs one of these APIs reports
the error itself."""


CHECKED: dict[int, set[tuple[AclOperation, AclResourceType]]] = defaultdict(set)
"""The rights that the handlers of the node have checked, for each API."""


def _noted(
    self: AllowEveryone,
    context: RequestContext,
    operation: AclOperation,
    resource: AclResourceType,
    name: str,
) -> bool:
    # Responses may contain all operations that the principal may use (KIP-430). The search for these
    # operations does not count as a check.
    if not sys._getframe(1).f_code.co_qualname.startswith(authorized_operations.__name__):
        CHECKED[context.api_key].add((operation, resource))
    return True


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with pytest.MonkeyPatch.context() as patch, Node() as running:
        patch.setattr(AllowEveryone, "allows", _noted)
        yield running


def served(node: Node) -> set[int]:
    answer = ask(node, ApiVersionsRequest(client_software_name="t", client_software_version="1"))
    return {row.api_key for row in answer.api_keys}


def test_all_apis_of_kafka_are_advertised_except_the_listed_missing_apis(node: Node) -> None:
    whole = {key for key in SUPPORTED if Scope.BROKER in scopes(key)}
    assert {ApiKey(key) for key in served(node)} == whole - NOT_YET


def plain(kind: Any) -> Any:
    """A value of a field's type that is not its default."""
    if isinstance(kind, types.UnionType):
        kind = next(one for one in typing.get_args(kind) if one is not type(None))
    origin = typing.get_origin(kind)
    if origin is not None:
        inner = typing.get_args(kind)
        return [plain(inner[0])] if inner else []
    if isinstance(kind, type) and issubclass(kind, Message):
        return filled(kind)
    return {int: 1, str: "a", bool: True, bytes: b"\0\1", float: 1.0}.get(kind)


def filled(cls: type[Message]) -> Message:
    """A message with a value in every field that the test can fill."""
    hints = typing.get_type_hints(cls, vars(sys.modules[cls.__module__]))
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        value = plain(hints[field.name])
        if value is not None and "records" not in field.name:
            values[field.name] = value
    return cls(**values)


HARMLESS = {
    "timeout_ms": 1,
    "max_wait_ms": 1,
    "acks": 1,
    "rebalance_timeout_ms": 1,
    "session_timeout_ms": 6000,
}


def requests_of(key: int) -> list[Message]:
    cls = request_class(key)
    names = {field.name for field in dataclasses.fields(cls)}
    harmless = {name: value for name, value in HARMLESS.items() if name in names}
    return [dataclasses.replace(message, **harmless) for message in (cls(), filled(cls))]


@pytest.mark.parametrize("key", sorted(key for key in SUPPORTED if Scope.BROKER in scopes(key)))
def test_every_version_is_answered(node: Node, key: ApiKey, caplog: pytest.LogCaptureFixture) -> None:
    if key in NOT_YET:
        return
    versions = SUPPORTED[key]
    requests = [
        (message, version)
        for version in range(versions.min, versions.max + 1)
        for message in requests_of(key)
    ]
    answers = ask_all(node, requests)
    assert len(answers) == len(requests)
    assert "request failed" not in caplog.text
    assert key in RIGHTS, "state the right that it needs in rights_of_apis.py"
    assert CHECKED[key] - RIGHTS[key] == set(), "Kafka checks other rights"
    is_unchecked = bool(RIGHTS[key]) and not CHECKED[key]
    assert key in CHECKED_IF_ANY or is_unchecked == (key in UNCHECKED), (
        "its handler checks no right, or it is listed although it does"
    )
