"""The limits of a group's size."""

from group_model import GroupModel

from moldau.coordinators.groups.classic.states import GroupState
from moldau.coordinators.groups.settings import GroupSettings
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau.runtime import ErrorCode

SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)


def three_members(settings: GroupSettings) -> GroupModel:
    model = GroupModel(settings)
    for client in ("a", "b", "c"):
        model.join(client, version=3)
    model.advance(0)
    return model


def test_an_assignment_too_large_to_write_is_refused_and_the_group_continues() -> None:
    model = three_members(GroupSettings(initial_rebalance_delay_ms=0, max_write_bytes=1_000))
    follower = model.sync("b-2", 1)
    leader = model.sync("a-1", 1, {"b-2": b"x" * 2_000})
    assert [model.answered[token].error_code for token in (follower, leader)] == [
        ErrorCode.unknown_server_error
    ] * 2
    assert model.log == []
    group = model.shard.classic.by_id["g"]
    assert group.state is GroupState.PREPARING_REBALANCE
    for client in ("a", "b", "c"):
        model.join(client, f"{client}-{'abc'.index(client) + 1}")
    model.sync("a-1", 2, {"b-2": b"small"})
    assert model.answered[model.sync("b-2", 2)].assignment == b"small"


def test_the_metadata_of_all_members_are_bounded() -> None:
    settings = GroupSettings(initial_rebalance_delay_ms=0, metadata_max_bytes=2_000, small_metadata_bytes=10)
    model = GroupModel(settings)

    def join(group: str, size: int, member_id: str = "") -> JoinGroupResponse:
        token = model.join("m", member_id, group=group, protocols=(("range", bytes(size)),), version=3)
        model.advance(0)
        answer = model.answered[token]
        assert isinstance(answer, JoinGroupResponse)
        return answer

    first = join("a", 1_500)
    assert first.error_code is ErrorCode.none
    assert join("b", 600).error_code is ErrorCode.group_max_size_reached
    assert join("c", 5).error_code is ErrorCode.none, "a member with little metadata has room always"
    # The member's metadata are not larger than before.
    assert join("a", 1_500, first.member_id).error_code is ErrorCode.none
    assert join("a", 2_500, first.member_id).error_code is ErrorCode.group_max_size_reached
    model.leave((first.member_id, None), group="a")
    assert model.shard.classic.metadata_bytes == len("range") + 5
    assert join("b", 600).error_code is ErrorCode.none


def test_a_restored_group_over_a_lowered_maximum_rebalances_down_to_it() -> None:
    model = three_members(SETTINGS)
    model.sync("a-1", 1)
    model.settings = GroupSettings(initial_rebalance_delay_ms=0, max_size=2)
    model.start()
    assert model.shard.classic.by_id["g"].state is GroupState.PREPARING_REBALANCE
    tokens = [model.join("m", member_id) for member_id in ("a-1", "b-2", "c-3")]
    answers = [model.answered[token] for token in tokens]
    assert all(isinstance(each, JoinGroupResponse) for each in answers)
    assert [each.error_code for each in answers] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.group_max_size_reached,
    ]
    assert list(model.shard.classic.by_id["g"].members) == ["a-1", "b-2"]


def test_restored_members_have_a_whole_session_again() -> None:
    model = three_members(SETTINGS)
    model.sync("a-1", 1)
    model.sync("b-2", 1)
    model.sync("c-3", 1)
    model.advance(9_000)
    model.start()
    model.advance(9_000)
    assert len(model.shard.classic.by_id["g"].members) == 3
    model.advance(1_000)
    assert model.shard.classic.by_id["g"].state is GroupState.EMPTY
