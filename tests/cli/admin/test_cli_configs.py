import json


def test_topic_configs_are_set_described_and_removed(run):
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


def test_items_are_added_to_and_removed_from_list_configs(run):
    run("topics", "create", "listy", "-c", "cleanup.policy=delete")
    assert run("configs", "alter", "topic", "listy", "--append", "cleanup.policy=compact").code == 0
    assert "compact" in run("configs", "describe", "topic", "listy").out
    assert run("configs", "alter", "topic", "listy", "--subtract", "cleanup.policy=compact").code == 0
    assert "compact" not in run("configs", "describe", "topic", "listy").out


def test_a_dry_run_changes_nothing(run):
    run("topics", "create", "checked")
    assert run("configs", "alter", "topic", "checked", "-s", "retention.ms=1", "--dry-run").code == 0
    assert "retention.ms" not in run("configs", "describe", "topic", "checked").out


def test_cluster_wide_broker_configs_are_set_described_and_removed(run):
    assert "node.id" in run("configs", "describe", "broker", "1").out
    assert run("configs", "alter", "broker", "default", "-s", "log.retention.ms=5000").code == 0
    assert run("configs", "describe", "broker", "default").out.splitlines()[1].split() == [
        "log.retention.ms",
        "5000",
        "cluster",
    ]
    assert run("configs", "alter", "broker", "default", "--unset", "log.retention.ms").code == 0
    assert "log.retention.ms=5000" not in run("configs", "describe", "broker", "1", "--synonyms").out


def test_a_config_that_cannot_be_set_is_an_error_of_one_line(run):
    run("topics", "create", "refuses")
    for setting, word in {"retention.ms=soon": "retention.ms", "no.such.key=1": "no.such.key"}.items():
        code, out, err = run("configs", "alter", "topic", "refuses", "--set", setting)
        assert (code, out) == (1, "")
        assert word in err
        assert err.count("\n") == 1
    assert run("configs", "describe", "topic", "absent").code == 1
    assert run("configs", "describe", "broker", "77").code == 1


def test_configs_of_loggers_groups_and_client_metrics_are_set_and_described(run):
    assert "\nmoldau.network" in run("configs", "describe", "broker-logger", "1").out
    assert run("configs", "alter", "broker-logger", "1", "-s", "moldau.server=FATAL").code == 0
    shown = run("configs", "describe", "broker-logger", "1").out.splitlines()
    assert ["moldau.server", "FATAL", "broker-logger"] in [line.split() for line in shown]
    assert run("configs", "alter", "broker-logger", "1", "--unset", "moldau.server").code == 0
    assert "OFF" in run("configs", "alter", "broker-logger", "1", "-s", "root=OFF").err
    assert run("configs", "alter", "group", "readers", "-s", "share.isolation.level=read_committed").code == 0
    assert run("configs", "describe", "group", "readers").out.splitlines()[1].split() == [
        "share.isolation.level",
        "read_committed",
        "group",
    ]
    assert run("configs", "alter", "client-metrics", "all", "-s", "metrics=*").code == 0
    assert run("configs", "list", "client-metrics").out.splitlines() == [
        "KIND            NAME",
        "client-metrics  all",
    ]
    listed = json.loads(run("configs", "list", "--json").out)
    assert {"kind": "group", "name": "readers"} in listed
    assert {"kind": "broker", "name": "1"} in listed
