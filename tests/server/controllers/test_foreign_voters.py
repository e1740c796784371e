"""Nodes of Apache Kafka become voters only while Moldau's own feature levels are 0. This is also true if a
level is changed at the same time."""

import asyncio
from functools import partial
from typing import Any, cast

import pytest

from moldau.cluster.controller.quorum_changes import QuorumChanges, VoterChanges
from moldau.cluster.decisions.kinds.diskless import DISKLESS_FEATURE
from moldau.cluster.image.delta import image_of
from moldau.cluster.image.image import EMPTY_IMAGE, MetadataImage
from moldau.config.broker import BrokerConfig
from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse, Listener
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse, SupportedFeatureKey
from moldau.protocol.records.metadata import FeatureLevelRecord
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode
from moldau.server.metadata.voter_check import VoterCheck

CONFIG = BrokerConfig.from_properties(
    {
        "process.roles": "controller",
        "node.id": "101",
        "controller.listener.names": "CONTROLLER",
        "listeners": "CONTROLLER://127.0.0.1:9093",
        "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
        "log.dirs": "/nowhere",
    }
)
RAISED = image_of([FeatureLevelRecord(name=DISKLESS_FEATURE, feature_level=1)], EMPTY_IMAGE)
REQUEST = AddRaftVoterRequest(voter_id=7, listeners=[Listener(name="CONTROLLER", host="k", port=9093)])


class Answering:
    """A client of one listener. It returns the features that its node supports."""

    def __init__(self, *features: str) -> None:
        self._features = ("kraft.version", *features)

    async def request(self, *_: object) -> ApiVersionsResponse:
        await asyncio.sleep(0)
        return ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=ApiKey.VOTE, min_version=0, max_version=1)],
            supported_features=[
                SupportedFeatureKey(name=name, min_version=0, max_version=1) for name in self._features
            ],
        )


class Quorum:
    """A quorum that adds every voter."""

    async def handle_rpc(self, message: Message) -> Message:
        return AddRaftVoterResponse(error_message=None)


def changes(*features: str, image: Any) -> QuorumChanges:
    check = VoterCheck(CONFIG, cast(RpcClient, Answering(*features)))
    return QuorumChanges(cast(VoterChanges, Quorum()), partial(check, image=image))


async def refuse(request: Message) -> Message:
    raise AssertionError(request)


@pytest.mark.parametrize(
    ("features", "image", "is_added"),
    [((), EMPTY_IMAGE, True), ((), RAISED, False), ((DISKLESS_FEATURE,), RAISED, True)],
    ids=["apache at level 0", "apache at level 1", "ours at level 1"],
)
def test_a_voter_that_does_not_know_our_levels_is_refused(
    features: tuple[str, ...], image: MetadataImage, is_added: bool
) -> None:
    answer: Any = asyncio.run(changes(*features, image=lambda: image).handle(REQUEST, refuse))
    assert (answer.error_code is ErrorCode.none) is is_added
    if not is_added:
        assert answer.error_code is ErrorCode.invalid_request
        assert f"voter 7 at k:9093 does not know {DISKLESS_FEATURE}" in answer.error_message


def test_a_level_and_a_voter_that_are_decided_at_once_exclude_each_other() -> None:
    seen: list[frozenset[int]] = []

    def image() -> MetadataImage:
        # From the first step of the voter change on, every decision about a feature level includes the new
        # voter. The result of earlier decisions is in the image, which is read after the voter's response.
        seen.append(changing.adding)
        return RAISED

    changing = changes(image=image)

    async def add() -> Any:
        adding = asyncio.ensure_future(changing.handle(REQUEST, refuse))
        await asyncio.sleep(0)
        assert changing.adding == {7}
        assert not seen
        return await adding

    assert asyncio.run(add()).error_code is ErrorCode.invalid_request
    assert seen == [{7}]
    assert changing.adding == frozenset()
