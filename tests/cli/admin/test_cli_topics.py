import json
import re

from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC


def test_a_topic_from_creation_to_deletion(run):
    assert run("topics", "create", "life", "-p", "3", "-c", "retention.ms=86400000") == (
        0,
        "created life (3 partitions)\n",
        "",
    )
    described = run("topics", "describe", "life").out.splitlines()
    assert re.fullmatch(r"life  [\w-]{22}  retention.ms=86400000", described[0])
    assert described[1:] == [
        "PARTITION  LEADER  EPOCH  REPLICAS  IN SYNC  OFFLINE  EARLIEST  LATEST",
        "        0       1      0  1         1        -               0       0",
        "        1       1      0  1         1        -               0       0",
        "        2       1      0  1         1        -               0       0",
    ]
    assert run("topics", "alter", "life", "-p", "4", "--unset", "retention.ms").out == "changed life\n"
    (topic,) = json.loads(run("topics", "describe", "life", "--json").out)
    assert topic["configs"] == {}
    assert [row["partition"] for row in topic["partitions"]] == [0, 1, 2, 3]
    assert run("topics", "delete", "life").out == "deleted life\n"
    assert run("topics", "describe", "life") == (1, "", "moldau: topic life does not exist\n")


def test_listing_hides_internal_topics_unless_asked(run):
    run("topics", "create", "listed")
    run("produce", "listed", stdin=b"one\n")
    run("consume", "listed", "--group", "makes-the-offsets-topic")
    names = [row["name"] for row in json.loads(run("topics", "list", "--json").out)]
    assert "listed" in names
    assert CONSUMER_OFFSETS_TOPIC not in names
    assert CONSUMER_OFFSETS_TOPIC in run("topics", "list", "--internal").out
    assert run("topics", "list").out.startswith("TOPIC")


def test_creating_an_existing_topic_is_an_error_without_if_not_exists(run):
    assert run("topics", "create", "twice").code == 0
    code, out, err = run("topics", "create", "twice")
    assert (code, out) == (1, "")
    assert err.startswith("moldau: twice: TOPIC_ALREADY_EXISTS")
    assert err.count("\n") == 1
    assert run("topics", "create", "twice", "--if-not-exists").code == 0


def test_a_dry_run_creates_nothing(run):
    assert run("topics", "create", "never", "--dry-run").code == 0
    assert run("topics", "describe", "never").code == 1


def test_a_bad_config_is_named(run):
    code, _, err = run("topics", "create", "bad", "-c", "cleanup.policy=shred")
    assert code == 1
    assert "cleanup.policy" in err
    assert err.count("\n") == 1


def test_deleting_a_missing_topic_is_an_error_without_if_exists(run):
    assert run("topics", "delete", "absent") == (1, "", "moldau: topic absent does not exist\n")
    assert run("topics", "delete", "absent", "--if-exists") == (0, "", "")


def test_usage_errors_end_with_2(run):
    for arguments in (
        ("topics", "create"),
        ("topics", "frob"),
        ("frob",),
        ("topics", "create", "x", "-c", "novalue"),
        ("topics", "alter", "x"),
        ("produce", "x", "--compression", "rar"),
        ("consume", "x", "--from", "yesterday"),
        ("consume", "x", "--group", "g", "--partition", "0"),
        ("groups", "reset-offsets", "g", "--topic", "t"),
        ("groups", "reset-offsets", "g", "--to-earliest"),
        ("records", "delete", "x"),
    ):
        ran = run(*arguments)
        assert (ran.code, ran.out) == (2, ""), arguments
        assert "Traceback" not in ran.err


def test_an_unreachable_node_is_an_error_of_one_line(cli):
    code, out, err = cli("topics", "list", "--bootstrap", "127.0.0.1:1", "--timeout", "2")
    assert (code, out) == (1, "")
    assert err.startswith("moldau: cannot connect to 127.0.0.1:1")
    assert err.count("\n") == 1
    assert cli("topics", "list", "--bootstrap", "nonsense").err == (
        "moldau: 'nonsense' is not HOST:PORT (--bootstrap)\n"
    )
