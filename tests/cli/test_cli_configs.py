import json


def test_topic_configs(run):
    run("topics", "create", "tuned")
    assert run("configs", "alter", "topic", "tuned", "-s", "retention.ms=1000").out == "changed topic tuned\n"
    assert run("configs", "describe", "topic", "tuned").out.splitlines() == [
        "CONFIG        VALUE  SOURCE",
        "retention.ms  1000   topic",
    ]
    rows = {
        row["name"]: row
        for row in json.loads(run("configs", "describe", "topic", "tuned", "-a", "--json").out)
    }
    assert rows["retention.ms"]["value"] == "1000"
    assert rows["cleanup.policy"]["source"] == "default"
    assert rows["cleanup.policy"]["documentation"]
    assert run("configs", "alter", "topic", "tuned", "--unset", "retention.ms").code == 0
    assert "retention.ms" not in run("configs", "describe", "topic", "tuned").out


def test_lists_grow_and_shrink(run):
    run("topics", "create", "listy", "-c", "cleanup.policy=delete")
    assert run("configs", "alter", "topic", "listy", "--append", "cleanup.policy=compact").code == 0
    assert "compact" in run("configs", "describe", "topic", "listy").out
    assert run("configs", "alter", "topic", "listy", "--subtract", "cleanup.policy=compact").code == 0
    assert "compact" not in run("configs", "describe", "topic", "listy").out


def test_a_dry_run_changes_nothing(run):
    run("topics", "create", "checked")
    assert run("configs", "alter", "topic", "checked", "-s", "retention.ms=1", "--dry-run").code == 0
    assert "retention.ms" not in run("configs", "describe", "topic", "checked").out


def test_broker_configs(run):
    assert "node.id" in run("configs", "describe", "broker", "1").out
    assert run("configs", "alter", "broker", "default", "-s", "log.retention.ms=5000").code == 0
    assert run("configs", "describe", "broker", "default").out.splitlines()[1].split() == [
        "log.retention.ms",
        "5000",
        "cluster",
    ]
    assert run("configs", "alter", "broker", "default", "--unset", "log.retention.ms").code == 0
    assert "log.retention.ms=5000" not in run("configs", "describe", "broker", "1", "--synonyms").out


def test_what_cannot_be_set_is_one_line(run):
    run("topics", "create", "refuses")
    for setting, word in {"retention.ms=soon": "retention.ms", "no.such.key=1": "no.such.key"}.items():
        code, out, err = run("configs", "alter", "topic", "refuses", "--set", setting)
        assert (code, out) == (1, "")
        assert word in err
        assert err.count("\n") == 1
    assert run("configs", "describe", "topic", "absent").code == 1
    assert run("configs", "describe", "broker", "77").code == 1
