import json
import re
import threading

import pytest

from moldau.cli.groups.member import range_assignment
from moldau.cli.main import main


@pytest.fixture
def group(run, request):
    """A topic of one partition with ten records, and a group of the same name that has read three records."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    run("topics", "create", name, "-p", "1", "-c", "retention.ms=-1")
    rows = [{"value": str(n), "timestamp": 1_000_000_000_000 + n * 1000} for n in range(10)]
    run("produce", name, "--format", "json", stdin="\n".join(map(json.dumps, rows)).encode())
    assert run("consume", name, "--group", name, "--count", "3").out == "0\n1\n2\n"
    return name


def test_a_group_continues_where_it_stopped(run, group):
    assert run("groups", "describe", group).out.splitlines()[1:] == [
        f"{'TOPIC':<{len(group)}}  PARTITION  COMMITTED  LATEST  LAG  CLIENT",
        f"{group}          0          3      10    7  -",
    ]
    assert run("consume", group, "--group", group).out == "".join(f"{n}\n" for n in range(3, 10))
    assert run("consume", group, "--group", group).out == ""
    (described,) = json.loads(run("groups", "describe", group, "--json").out)
    assert described["state"] == "Empty"
    assert described["offsets"] == [
        {"topic": group, "partition": 0, "committed": 10, "latest": 10, "lag": 0, "client_id": None}
    ]


def test_groups_are_listed(run, group):
    rows = json.loads(run("groups", "list", "--json").out)
    assert {"group": group, "state": "Empty", "type": "classic", "protocol_type": "consumer"} in rows
    assert group in run("groups", "list").out
    assert group not in run("groups", "list", "--state", "Stable").out


def test_a_deleted_group_is_gone(run, group):
    assert run("groups", "delete", group).out == f"deleted {group}\n"
    assert run("groups", "describe", group) == (1, "", f"moldau: there is no group {group}\n")
    assert run("groups", "delete", group).code == 1


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--to-earliest", 0),
        ("--to-latest", 10),
        ("--to-offset=4", 4),
        ("--to-offset=400", 10),
        ("--shift-by=2", 5),
        ("--shift-by=-2", 1),
        ("--shift-by=-20", 0),
        ("--to-datetime=1000000006500", 7),
        ("--to-datetime=2001-09-09T01:46:46Z", 6),
        ("--to-datetime=2050-01-01T00:00:00Z", 10),
    ],
)
def test_group_offsets_are_reset_to_each_kind_of_position(run, group, option, expected):
    dry = run("groups", "reset-offsets", group, "--topic", group, option)
    assert dry.out.splitlines()[-1] == "nothing was changed: use --execute to change the offsets"
    assert run("groups", "describe", group).out.splitlines()[-1].split()[2] == "3"
    done = run("groups", "reset-offsets", group, "--all-topics", option, "--execute", "--json")
    assert json.loads(done.out) == {
        "group": group,
        "executed": True,
        "offsets": [{"topic": group, "partition": 0, "committed": 3, "new": expected}],
    }
    assert run("groups", "describe", group).out.splitlines()[-1].split()[2] == str(expected)


def test_a_group_with_members_is_shown_and_its_changes_are_refused(run, group, node):
    arguments = ["consume", group, "--group", group, "--follow", "--count", "8"]
    codes = []
    reader = threading.Thread(target=lambda: codes.append(main([*arguments, "-b", node.bootstrap_servers])))
    reader.start()
    try:
        while "Stable" not in (shown := run("groups", "describe", group, "--members").out):
            pass
        assert f"{group}-0" in shown
        refused = run("groups", "reset-offsets", group, "--topic", group, "--to-earliest", "--execute")
        assert refused.code == 1
        assert "has 1 members" in refused.err
    finally:
        run("produce", group, stdin=b"last\n")
        reader.join(60)
    assert codes == [0]


def test_range_assignment_gives_the_first_members_the_extra_partitions():
    members = {"b": ["t", "u"], "a": ["t"], "c": ["t"]}
    assert range_assignment(members, {"t": 5, "u": 1}) == {
        "a": {"t": range(2)},
        "b": {"t": range(2, 4), "u": range(1)},
        "c": {"t": range(4, 5)},
    }
