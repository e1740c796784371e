"""The config policy with the real definitions of configs."""

import dataclasses

import pytest

from moldau.cluster.decisions.kinds import table
from moldau.cluster.decisions.kinds.diskless import DISKLESS
from moldau.cluster.image.image import ResourceType
from moldau.cluster.kafka_config_policy import KafkaConfigPolicy
from moldau.config import BrokerConfig
from moldau.runtime import ErrorCode, KafkaError

POLICY = KafkaConfigPolicy(
    lambda: BrokerConfig.from_properties(
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@localhost:9093",
            "log.retention.ms": "1234",
            "diskless.system.enable": "false",
        }
    )
)


@pytest.mark.parametrize(
    ("resource_type", "name", "key", "value", "code"),
    [
        (ResourceType.TOPIC, "t", "no.such.key", "1", ErrorCode.invalid_config),
        (ResourceType.TOPIC, "t", "retention.ms", "soon", ErrorCode.invalid_config),
        (ResourceType.TOPIC, "t", "diskless.enable", "true", ErrorCode.invalid_config),
        (ResourceType.BROKER, "1", "log.dirs", "/x", ErrorCode.invalid_request),
        (ResourceType.BROKER, "", "max.connections", "0", ErrorCode.invalid_request),
    ],
)
def test_bad_configs_are_named(
    resource_type: ResourceType, name: str, key: str, value: str, code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as caught:
        POLICY.validate(resource_type, name, {key: value})
    assert caught.value.code is code
    assert key in str(caught.value) or "iskless" in str(caught.value)


def test_good_configs_pass() -> None:
    POLICY.validate(ResourceType.TOPIC, "t", {"retention.ms": "5", "cleanup.policy": "compact,delete"})
    POLICY.validate(ResourceType.BROKER, "", {"log.retention.ms": "5"})
    POLICY.validate(ResourceType.BROKER, "1", {"a.key.of.a.plugin": "5"})


def test_defaults_and_lists() -> None:
    assert POLICY.default(ResourceType.TOPIC, "retention.ms") == "1234"
    assert POLICY.default(ResourceType.TOPIC, "no.such.key") is None
    assert POLICY.is_list(ResourceType.TOPIC, "cleanup.policy")
    assert not POLICY.is_list(ResourceType.TOPIC, "retention.ms")


def test_a_new_topic_is_described_with_sources() -> None:
    described = {config.name: config for config in POLICY.describe_topic({"retention.bytes": "7"})}
    assert (described["retention.bytes"].value, described["retention.bytes"].source) == ("7", 1)
    assert (described["retention.ms"].value, described["retention.ms"].source) == ("1234", 4)
    assert described["cleanup.policy"].source == 5


def test_a_topic_of_a_kind_that_the_broker_does_not_allow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of a kind names the broker's config that allows topics of this kind."""
    with pytest.raises(
        KafkaError, match=r"Diskless topics are disabled .*diskless.system.enable=false"
    ) as caught:
        POLICY.validate(ResourceType.TOPIC, "t", {"diskless.enable": "true"})
    assert caught.value.code is ErrorCode.invalid_config
    other = dataclasses.replace(DISKLESS, enable_key="unclean.leader.election.enable")
    monkeypatch.setattr(table, "KINDS", (other,))
    with pytest.raises(KafkaError, match=r"unclean.leader.election.enable=false"):
        POLICY.validate(ResourceType.TOPIC, "t", {"diskless.enable": "true"})
