"""FindCoordinator supports the kinds of coordinators of all subsystems, at any position in the list."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.cluster.internal_topics import InternalTopic
from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.runtime import ErrorCode, KafkaError
from moldau.server.coordinators.entry import CoordinatorEntry, KeyLookup, Leaders
from moldau.server.coordinators.registry import CoordinatorRegistry
from moldau.server.extensions import Extensions
from moldau.server.subsystem import Contribution
from moldau.server.subsystems.find_coordinator import CoordinatorsSubsystem

KEY_TYPE = 42


def refuse(context: RequestContext) -> None:
    raise KafkaError(ErrorCode.group_authorization_failed)


def test_a_kind_that_a_later_subsystem_contributes_is_found() -> None:
    extensions = Extensions()
    subsystem = CoordinatorsSubsystem(
        cast(Any, SimpleNamespace(view=None)), extensions, cast(Any, SimpleNamespace(creator=None))
    )
    lookup = KeyLookup(key_type=KEY_TYPE, partition_of=lambda key, count: 0, check=refuse)
    topic = InternalTopic("t", 1, 1, "")
    entry = CoordinatorEntry(topic=topic, leaders=cast(Leaders, None), lookup=lookup)
    extensions.add(Contribution(coordinators=[entry]))

    async def find() -> FindCoordinatorResponse:
        handler = subsystem.contribution().handlers[ApiKey.FIND_COORDINATOR]
        context = RequestContext(ApiKey.FIND_COORDINATOR, 4, 1, "test", ConnectionContext("1", "EXTERNAL"))
        request = FindCoordinatorRequest(key_type=KEY_TYPE, coordinator_keys=["a"])
        return cast(FindCoordinatorResponse, await cast(Any, handler(context, request)))

    (row,) = asyncio.run(find()).coordinators
    # The error is raised by ``check`` of the kind's lookup.
    assert row.error_code is ErrorCode.group_authorization_failed


def test_two_kinds_for_one_key_type_are_refused() -> None:
    """If two kinds had the same key type, clients could find only one of them."""
    lookup = KeyLookup(key_type=KEY_TYPE, partition_of=lambda key, count: 0, check=refuse)
    entries = [
        CoordinatorEntry(topic=InternalTopic(name, 1, 1, ""), leaders=cast(Leaders, None), lookup=lookup)
        for name in ("t", "u")
    ]
    with pytest.raises(ValueError, match="key type 42 has two kinds"):
        CoordinatorRegistry(entries)
