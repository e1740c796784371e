"""The language of the golden scripts. A script has one command on each line, then ``----``, then the output.
Most commands are requests of group members. The commands are::

    join CLIENT [member=ID] [instance=ID] [version=N] [protocols=a,b] [session=MS] [rebalance=MS]
    sync MEMBER GENERATION [ID=ASSIGNMENT ...]
    beat MEMBER GENERATION [instance=ID]      send a heartbeat
    leave MEMBER ...                          a name after @ is an instance id
    commit OFFSET [member=ID] [generation=N] [topic=T] [retention=MS]
    offsets                                   print the committed offsets
    timers                                    print the timers
    show                                      print the groups
    wait MS                                   move the clock forward
    restart                                   load the group from its log
    settings NAME=VALUE ...                   continue with a new shard that has these settings
"""

from collections.abc import Iterator
from typing import Any

from group_model import GroupModel, subscription

from moldau.coordinators.groups.records import ConsumerOffsetsRecord, GroupRecord, OffsetRecord
from moldau.coordinators.groups.settings import GroupSettings
from moldau.protocol.messages.heartbeat import HeartbeatResponse
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupResponse
from moldau.protocol.messages.offset_commit import OffsetCommitResponse
from moldau.protocol.messages.sync_group import SyncGroupResponse
from moldau.runtime import ErrorCode, KafkaError


def run_script(text: str) -> str:
    """The script with the current output of the shard."""
    model = GroupModel(GroupSettings())
    parts = []
    for block in text.strip().split("\n\n"):
        command = block.partition("\n----")[0]
        lines = []
        for line in command.splitlines():
            if line.startswith("#"):
                continue
            if line.startswith("settings "):
                numbers = {key: int(value) for key, value in _options(line.split()[1:]).items()}
                model = GroupModel(GroupSettings(**numbers))
            else:
                lines.extend(_run(model, line.split()))
        parts.append("\n".join([command, "----", *lines]).rstrip())
    return "\n\n".join(parts) + "\n"


def _options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def _run(model: GroupModel, words: list[str]) -> Iterator[str]:
    name, *rest = words
    model.fresh_replies.clear()
    model.fresh_records.clear()
    try:
        yield from COMMANDS[name](model, rest) or ()
    except KafkaError as error:
        yield f"refused {error.code.name}"
    yield from (f"write {_record(record)}" for record in model.fresh_records)
    yield from (f"#{token} {_reply(response)}" for token, response in model.fresh_replies)


def _join(model: GroupModel, words: list[str]) -> None:
    options = _options(words[1:])
    names = options.get("protocols", "range").split(",")
    model.join(
        words[0],
        options.get("member", ""),
        instance_id=options.get("instance"),
        version=int(options.get("version", 9)),
        protocols=tuple((name, subscription(options.get("topic", "orders"))) for name in names if name),
        protocol_type=options.get("type", "consumer"),
        session_ms=int(options.get("session", 10_000)),
        rebalance_ms=int(options.get("rebalance", 30_000)),
    )


def _sync(model: GroupModel, words: list[str]) -> None:
    options = _options(words[2:])
    protocol = options.pop("protocol", None)
    assignments = {member: data.encode() for member, data in options.items()}
    model.sync(words[0], int(words[1]), assignments, protocol=protocol)


def _beat(model: GroupModel, words: list[str]) -> None:
    model.heartbeat(words[0], int(words[1]), instance_id=_options(words[2:]).get("instance"))


def _leave(model: GroupModel, words: list[str]) -> None:
    model.leave(*[("", word[1:]) if word.startswith("@") else (word, None) for word in words])


def _commit(model: GroupModel, words: list[str]) -> None:
    options = _options(words[1:])
    model.commit(
        int(words[0]),
        topic=options.get("topic", "orders"),
        member_id=options.get("member", ""),
        generation=int(options.get("generation", -1)),
        retention_ms=int(options.get("retention", -1)),
    )


def _offsets(model: GroupModel, words: list[str]) -> Iterator[str]:
    for topic in model.shard.offsets.fetch_present(
        "g", model.shard.offsets.store.committed_partitions("g"), lambda topic: None, require_stable=False
    ):
        for each in topic.partitions:
            yield f"{topic.name}-{each.partition_index} {each.committed_offset}"


def _timers(model: GroupModel, words: list[str]) -> Iterator[str]:
    for key, due_ms in sorted(model.session_timers().items(), key=lambda item: (item[1], str(item[0]))):
        yield f"{type(key).__name__} {getattr(key, 'member_id', '')} in {due_ms - model.now_ms}".replace(
            "  ", " "
        )


def _show(model: GroupModel, words: list[str]) -> Iterator[str]:
    for group in model.shard.classic.by_id.values():
        state = f"{group.state.value} generation={group.generation}"
        yield f"{state} leader={group.leader} protocol={group.protocol_name}"
        for member in group.members.values():
            yield f"  {member.member_id} assignment={member.assignment.decode()}"


COMMANDS: dict[str, Any] = {
    "join": _join,
    "sync": _sync,
    "beat": _beat,
    "leave": _leave,
    "commit": _commit,
    "offsets": _offsets,
    "timers": _timers,
    "show": _show,
    "wait": lambda model, words: model.advance(int(words[0])),
    "restart": lambda model, words: model.start(),
}


def _reply(response: Any) -> str:
    match response:
        case JoinGroupResponse(error_code=ErrorCode.none):
            members = ",".join(member.member_id for member in response.members)
            return (
                f"joined {response.member_id} generation={response.generation_id} leader={response.leader}"
                f" protocol={response.protocol_name}"
                + (f" members={members}" if members else "")
                + (" skip" if response.skip_assignment else "")
            )
        case JoinGroupResponse():
            return f"join refused {response.error_code.name} {response.member_id}".rstrip()
        case SyncGroupResponse(error_code=ErrorCode.none):
            return f"assigned {response.assignment.decode()}".rstrip()
        case SyncGroupResponse():
            return f"sync refused {response.error_code.name}"
        case HeartbeatResponse():
            return f"beat {response.error_code.name}"
        case LeaveGroupResponse():
            return "left " + " ".join(each.error_code.name for each in response.members)
        case OffsetCommitResponse():
            return f"committed {response.topics[0].partitions[0].error_code.name}"
    raise AssertionError(response)


def _record(record: ConsumerOffsetsRecord) -> str:
    match record:
        case OffsetRecord():
            value = "tombstone" if record.value is None else record.value.offset
            return f"offset {record.topic}-{record.partition} {value}"
        case GroupRecord(value=None):
            return "group tombstone"
        case GroupRecord():
            assert record.value is not None
            members = " ".join(
                f"{member.member_id}={member.assignment.decode()}" for member in record.value.members
            )
            return f"group generation={record.value.generation} [{members}]"
