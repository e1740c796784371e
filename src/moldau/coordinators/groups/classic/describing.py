"""Descriptions of groups for operators. Pure."""

from collections.abc import Iterable
from typing import Final

from moldau.coordinators.groups.classic.group import Group
from moldau.coordinators.groups.classic.states import GroupState
from moldau.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from moldau.protocol.messages.list_groups import ListedGroup
from moldau.runtime import ErrorCode

CLASSIC: Final = "classic"


def describe(group_id: str, group: Group | None) -> DescribedGroup:
    """The DescribeGroups response for one group. An unknown group has the state Dead. From the request
    version of KIP-1043 on, it also has an error."""
    if group is None:
        return DescribedGroup(
            group_id=group_id,
            group_state=GroupState.DEAD.value,
            error_code=ErrorCode.group_id_not_found,
            error_message=f"Group {group_id} not found.",
        )
    # Only a stable group has a protocol that all its members share. Groups in other states have no protocol
    # data to show.
    name = group.protocol_name if group.state is GroupState.STABLE else None
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=name or "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client.client_id,
                client_host=member.client.host,
                member_metadata=b"" if name is None else member.metadata(name),
                member_assignment=b"" if name is None else member.assignment,
            )
            for member in group.members.values()
        ],
    )


def list_groups(groups: Iterable[Group], states: Iterable[str], types: Iterable[str]) -> list[ListedGroup]:
    """The groups with the requested states and types. Upper and lower case are equal in ``states`` and
    ``types``. An empty filter matches all groups."""
    wanted_states = {state.lower() for state in states}
    wanted_types = {each.lower() for each in types}
    if wanted_types and CLASSIC not in wanted_types:
        return []
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=CLASSIC,
        )
        for group in groups
        if not wanted_states or group.state.value.lower() in wanted_states
    ]
