"""Requests that the metadata quorum decides instead of the controller. They concern voters and kraft.version
(KIP-853)."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from moldau.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from moldau.protocol.schema import Message
from moldau.quorum.core.messages import UpgradeVersionRequest, VoterChangeRequest, VoterChangeResponse
from moldau.quorum.core.voters import KRAFT_VERSION_FEATURE
from moldau.quorum.wire.requests import WireRequest, WireResponse
from moldau.runtime import ErrorCode, KafkaError

QUORUM_CHANGE_APIS: Final = (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER)


class VoterChanges(Protocol):
    """Changes of voters, made on this node's replica of the quorum."""

    async def handle_rpc(self, message: WireRequest) -> WireResponse: ...

    async def change_voters(self, request: VoterChangeRequest) -> VoterChangeResponse: ...


class QuorumChanges:
    """Handles requests about voters and kraft.version. The controller does not get these requests."""

    def __init__(
        self, quorum: VoterChanges, check_voter: Callable[[AddRaftVoterRequest], Awaitable[None]]
    ) -> None:
        """``check_voter`` raises ``KafkaError`` for a node that cannot become a voter."""
        self._quorum = quorum
        self._check_voter = check_voter
        self._adding: list[int] = []

    @property
    def adding(self) -> frozenset[int]:
        """The ids of the nodes that are about to become voters, because a request to add them is in progress.
        Decisions about feature levels treat these nodes like voters."""
        return frozenset(self._adding)

    @staticmethod
    def handles(request: Message) -> bool:
        if isinstance(request, UpdateFeaturesRequest):
            return any(update.feature == KRAFT_VERSION_FEATURE for update in request.feature_updates)
        return isinstance(request, AddRaftVoterRequest | RemoveRaftVoterRequest)

    async def handle(self, request: Any, decide: Callable[[Message], Awaitable[Message]]) -> Message:
        """Answer a request when its change is committed. A request for feature levels may also contain
        features that the controller decides. ``decide`` sends these features to the controller."""
        if isinstance(request, UpdateFeaturesRequest):
            return await self._update_features(request, decide)
        if isinstance(request, AddRaftVoterRequest):
            return await self._add_voter(request)
        response: Message = await self._quorum.handle_rpc(request)
        return response

    async def _add_voter(self, request: AddRaftVoterRequest) -> Message:
        self._adding.append(request.voter_id)
        try:
            await self._check_voter(request)
            response: Message = await self._quorum.handle_rpc(request)
        except KafkaError as error:
            return AddRaftVoterResponse(error_code=error.code, error_message=error.message)
        finally:
            self._adding.remove(request.voter_id)
        return response

    async def _update_features(
        self, request: UpdateFeaturesRequest, decide: Callable[[Message], Awaitable[Message]]
    ) -> Message:
        """Change feature levels. The other features are checked before kraft.version is raised, because
        kraft.version cannot be lowered afterwards."""
        own = [update for update in request.feature_updates if update.feature == KRAFT_VERSION_FEATURE]
        others = [update for update in request.feature_updates if update.feature != KRAFT_VERSION_FEATURE]
        if len(own) > 1:
            return _answer(
                request, ErrorCode.invalid_request, f"Feature {KRAFT_VERSION_FEATURE} is named twice."
            )
        if others:
            checked: Any = await decide(replace(request, feature_updates=others, validate_only=True))
            if checked.error_code is not ErrorCode.none:
                return _answer(request, checked.error_code, checked.error_message)
        raised = await self._raise(own[0], validate_only=request.validate_only)
        if raised.error is not ErrorCode.none or not others or request.validate_only:
            return _answer(request, raised.error, raised.message or None)
        done: Any = await decide(replace(request, feature_updates=others))
        return _answer(request, done.error_code, done.error_message)

    async def _raise(self, update: FeatureUpdateKey, *, validate_only: bool) -> VoterChangeResponse:
        try:
            return await self._quorum.change_voters(
                UpgradeVersionRequest(kraft_version=update.max_version_level, validate_only=validate_only)
            )
        except KafkaError as error:
            return VoterChangeResponse(
                error=error.code, leader_id=None, epoch=-1, message=error.message or ""
            )


def _answer(request: UpdateFeaturesRequest, code: ErrorCode, text: str | None) -> UpdateFeaturesResponse:
    code = ErrorCode.not_controller if code is ErrorCode.not_leader_or_follower else code
    results = [
        UpdatableFeatureResult(feature=update.feature, error_code=code, error_message=text)
        for update in request.feature_updates
    ]
    return UpdateFeaturesResponse(error_code=code, error_message=text, results=results)
