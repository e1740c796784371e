"""DescribeConfigs hides passwords: their values, and the values of all their synonyms."""

import pytest

from moldau.config import BROKER, BrokerConfig, client_metrics, group, topic_config
from moldau.config.definition import ConfigDef, ConfigKey, ConfigType, Synonym
from moldau.config.described_config import ConfigEntry, shown_value
from moldau.config.group import GroupConfig
from moldau.config.topic_config import TopicConfig

PASSWORD = ConfigKey("a.password", ConfigType.PASSWORD, "default secret", "A password.")
OF_TOPIC = ConfigKey(
    "a.password",
    ConfigType.PASSWORD,
    "default secret",
    "A password.",
    synonyms=(Synonym("ssl.key.password"), Synonym("ssl.keystore.password")),
)
BROKER_VALUES = {"ssl.key.password": "key secret", "ssl.keystore.password": "store secret"}


def shown(entry: ConfigEntry) -> list[str | None]:
    return [entry.text, *(synonym.text for synonym in entry.synonyms)]


@pytest.mark.parametrize("overrides", [{}, {"a.password": "own secret"}])
def test_a_password_of_a_topic_is_hidden_with_its_synonyms(monkeypatch, overrides):
    monkeypatch.setattr(topic_config, "TOPIC", ConfigDef([*topic_config.TOPIC, OF_TOPIC]))
    broker = BrokerConfig(BROKER_VALUES).with_dynamic({}, {"ssl.key.password": "dynamic secret"})
    entry = TopicConfig(broker, overrides).entry("a.password")
    assert entry.value == overrides.get("a.password", "dynamic secret")
    assert [synonym.name for synonym in entry.synonyms] == [
        *overrides,
        "ssl.key.password",
        "ssl.key.password",
        "ssl.keystore.password",
    ]
    assert set(shown(entry)) == {None}


def test_a_password_of_a_broker_is_hidden_with_its_synonyms():
    entry = BrokerConfig(BROKER_VALUES).entry("ssl.key.password")
    assert entry.synonyms
    assert set(shown(entry)) == {None}


def test_a_password_of_a_group_is_hidden_with_its_synonyms(monkeypatch):
    monkeypatch.setattr(group, "GROUP", ConfigDef([*group.GROUP, PASSWORD]))
    (entry,) = [
        entry
        for entry in GroupConfig(BrokerConfig({}), {"a.password": "own secret"}).describe()
        if entry.name == "a.password"
    ]
    assert entry.synonyms
    assert set(shown(entry)) == {None}


def test_a_password_of_a_subscription_is_hidden_with_its_synonyms(monkeypatch):
    monkeypatch.setattr(client_metrics, "CLIENT_METRICS", ConfigDef([PASSWORD]))
    (entry,) = client_metrics.describe({"a.password": "own secret"})
    assert entry.synonyms
    assert set(shown(entry)) == {None}


def test_the_value_of_an_undefined_key_is_hidden():
    assert shown_value(None, "secret of a plug-in") is None
    assert shown_value(BROKER["num.partitions"], 3) == "3"
