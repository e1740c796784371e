"""Keys without effect are marked. All other keys are read by some code."""

import re
from pathlib import Path

import pytest

import moldau
from moldau.config.broker import BROKER
from moldau.config.definition import ConfigError
from moldau.config.docs import configuration_page
from moldau.config.keys.synonyms import TOPIC_SYNONYMS
from moldau.config.keys.without_effect import WAITS_FOR
from moldau.config.topic_config import TOPIC
from moldau.server.settings import (
    check_supported,
    consolidates,
    development_config,
    quorum_config,
    without_effect,
)

ROOT = Path(moldau.__file__).parent
READ_BY_PREFIX = re.compile(r"remote\.log\.manager\.(copy|fetch)\.(max\.bytes|quota\.window)\..*")
"""The keys whose names ``tiered/settings.py`` builds from a prefix."""


def source_of_readers() -> str:
    definitions = ROOT / "config"
    # A key has no effect if code only compares it with another key. The code of the pipeline is not searched,
    # because it contains names of client options that are equal to names of keys.
    aside = [definitions / name for name in ("keys", "synonyms.py", "node_combinations.py", "dynamic.py")]
    aside.append(ROOT / "pipeline")
    return "\n".join(
        path.read_text()
        for path in ROOT.rglob("*.py")
        if not any(path == one or one in path.parents for one in aside)
    )


def test_a_key_is_read_unless_it_is_marked() -> None:
    source = source_of_readers()
    synonyms: dict[str, set[str]] = {}
    for name, behind in TOPIC_SYNONYMS.items():
        for synonym in behind:
            synonyms.setdefault(synonym.name, set()).add(name)

    def is_read(name: str) -> bool:
        names = {name, *synonyms.get(name, ())}
        return READ_BY_PREFIX.fullmatch(name) is not None or any(f'"{one}"' in source for one in names)

    unread = {key.name for key in (*BROKER, *TOPIC) if key.has_effect and not is_read(key.name)}
    assert unread == set(WAITS_FOR)


def test_a_key_that_waits_for_a_feature_is_not_ignored() -> None:
    defined = {key.name: key for key in (*BROKER, *TOPIC)}
    assert set(WAITS_FOR) <= set(defined)
    assert all(defined[name].has_effect for name in WAITS_FOR)


def test_the_page_marks_keys_without_effect() -> None:
    page = configuration_page()
    assert "| `transaction.two.phase.commit.enable` ‡ |" in page
    assert "| `num.partitions` |" in page


def test_a_node_names_keys_that_have_no_effect(tmp_path: Path) -> None:
    config = development_config(
        str(tmp_path), 0, {"transaction.two.phase.commit.enable": "true", "num.partitions": "3"}
    )
    assert without_effect(config) == {
        "transaction.two.phase.commit.enable": "has no effect yet, it waits for two-phase commit (KIP-939)"
    }
    reporters = {"metric.reporters": "org.example.Reporter"}
    (reason,) = without_effect(development_config(str(tmp_path), 0, reporters)).values()
    assert "a Java class cannot be loaded" in reason
    own = {"metric.reporters": "org.apache.kafka.common.metrics.JmxReporter"}
    assert without_effect(development_config(str(tmp_path), 0, own)) == {}
    assert without_effect(development_config(str(tmp_path), 0, {})) == {}


def test_a_node_names_keys_of_single_listeners_that_have_no_effect(tmp_path: Path) -> None:
    keys = {
        "listener.name.PLAINTEXT.max.connections": "100",
        "listener.name.internal.max.connections": "100",
        "listener.name.plaintext.num.network.threads": "8",
        "listener.name.plaintext.ssl.keystore.location": "/a",
        "listener.name.plaintext.plain.sasl.jaas.config": "password=secret",
    }
    found = without_effect(development_config(str(tmp_path), 0, keys))
    assert sorted(found) == sorted(set(keys) - {"listener.name.PLAINTEXT.max.connections"})
    assert found["listener.name.internal.max.connections"].endswith("no listener is named internal")
    assert "only max.connections is read" in found["listener.name.plaintext.num.network.threads"]
    assert "secret" not in str(found)


def test_a_node_does_not_run_openly_where_access_control_is_wanted(tmp_path: Path) -> None:
    config = development_config(str(tmp_path), 0, {"authorizer.class.name": "org.example.Authorizer"})
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name must not be set: access control"):
        check_supported(config)


@pytest.mark.parametrize(
    "key",
    [
        "create.topic.policy.class.name",
        "alter.config.policy.class.name",
        "client.quota.callback.class",
        "config.providers",
    ],
)
def test_a_node_does_not_run_without_the_rules_of_a_java_class(tmp_path: Path, key: str) -> None:
    config = development_config(str(tmp_path), 0, {key: "org.example.Rules"})
    with pytest.raises(ConfigError, match=f"{re.escape(key)} must not be set"):
        check_supported(config)


def test_the_metadata_log_lingers_only_where_that_is_set(tmp_path: Path) -> None:
    def linger(**keys: str) -> int:
        return quorum_config(development_config(str(tmp_path), 0, keys), "cluster").append_linger_ms

    assert linger() == 0
    assert linger(**{"controller.quorum.append.linger.ms": "40"}) == 40


@pytest.mark.parametrize("roles", ["broker", "broker,controller"])
def test_a_broker_of_several_nodes_consolidates_if_it_has_a_remote_tier(tmp_path: Path, roles: str) -> None:
    node_id = 1 if "controller" in roles else 4
    common = {
        "process.roles": roles,
        "node.id": str(node_id),
        "controller.quorum.voters": "1@one:9093,2@two:9093,3@three:9093",
        "listeners": "PLAINTEXT://:0" + (",CONTROLLER://:0" if "controller" in roles else ""),
        "remote.log.storage.system.enable": "true",
        "log.diskless.enable": "false",
    }
    both = development_config(str(tmp_path), 0, {**common, "diskless.system.enable": "true"})
    check_supported(both)
    assert consolidates(both)
    assert not consolidates(development_config(str(tmp_path), 0, common))
    assert consolidates(development_config(str(tmp_path), 0, {}, diskless=True))
