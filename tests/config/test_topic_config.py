from pathlib import Path

import pytest

from moldau.config import BrokerConfig, ConfigError, ConfigSource, TopicConfig
from moldau.config.docs import configuration_page

PLAIN = BrokerConfig({})
TIERED = BrokerConfig({"remote.log.storage.system.enable": "true", "diskless.system.enable": "true"})


def test_a_topic_without_overrides_has_the_default_values():
    config = TopicConfig.effective(PLAIN, {})
    assert config.retention_ms == 604_800_000
    assert config.local_retention_ms == 604_800_000
    assert config.max_message_bytes == 1_048_588
    assert config.deletes
    assert not config.is_compacted
    assert not config.is_diskless
    assert config.integer("message.timestamp.after.max.ms") == 3_600_000


def test_broker_configs_are_the_defaults_of_topic_configs():
    broker = BrokerConfig(
        {"log.retention.hours": "1", "log.cleanup.policy": "compact", "message.max.bytes": "9"}
    )
    config = TopicConfig.effective(broker, {"max.message.bytes": "7"})
    assert config.retention_ms == 3_600_000
    assert config.is_compacted
    assert config.max_message_bytes == 7
    dynamic = TopicConfig.effective(broker.with_dynamic({"log.retention.ms": "5"}), {})
    assert dynamic.retention_ms == 5
    assert dynamic.entry("retention.ms").source is ConfigSource.DYNAMIC_DEFAULT_BROKER


def test_sources_and_synonyms_as_describe_configs_shows_them():
    broker = BrokerConfig({"log.retention.hours": "1"}).with_dynamic(
        {"log.retention.ms": "6"}, {"log.retention.ms": "5"}
    )
    entry = TopicConfig.effective(broker, {"retention.ms": "4"}).entry("retention.ms")
    assert (entry.value, entry.text, entry.source) == (4, "4", ConfigSource.DYNAMIC_TOPIC)
    assert [(synonym.name, synonym.text, synonym.source.name) for synonym in entry.synonyms] == [
        ("retention.ms", "4", "DYNAMIC_TOPIC"),
        ("log.retention.ms", "5", "DYNAMIC_BROKER"),
        ("log.retention.ms", "6", "DYNAMIC_DEFAULT_BROKER"),
        ("log.retention.hours", "1", "STATIC_BROKER"),
        ("log.retention.hours", "168", "DEFAULT"),
    ]
    assert TopicConfig.effective(PLAIN, {}).entry("retention.ms").is_default


def test_describe_filters_by_name():
    config = TopicConfig.effective(PLAIN, {})
    assert [entry.name for entry in config.describe(["retention.ms", "what"])] == ["retention.ms"]
    names = [entry.name for entry in config.describe()]
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("broker", "overrides", "key", "reason"),
    [
        (PLAIN, {"retention": "1"}, "retention", "Unknown topic config name: retention"),
        (PLAIN, {"retention.ms": None}, "retention.ms", "Null value not supported for topic configs"),
        (PLAIN, {"retention.ms": "-2"}, "retention.ms", "Value must be at least -1"),
        (PLAIN, {"retention.ms": "soon"}, "retention.ms", "Not a number of type LONG"),
        (PLAIN, {"segment.bytes": "1000"}, "segment.bytes", "Value must be at least 1048576"),
        (PLAIN, {"min.insync.replicas": "0"}, "min.insync.replicas", "Value must be at least 1"),
        (
            PLAIN,
            {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
            "min.compaction.lag.ms",
            "> max.compaction.lag.ms",
        ),
        (PLAIN, {"remote.storage.enable": "true"}, "remote.storage.enable", "disabled in the broker"),
        (
            TIERED,
            {"remote.storage.enable": "true", "cleanup.policy": "compact"},
            "remote.storage.enable",
            "cleanup.policy=delete",
        ),
        (
            TIERED,
            {"remote.storage.enable": "true", "retention.ms": "5", "local.retention.ms": "6"},
            "local.retention.ms",
            "Invalid value 6 for configuration local.retention.ms: Value must not be more than retention.ms"
            " property value: 5",
        ),
        (
            TIERED,
            {"remote.storage.enable": "true", "retention.bytes": "5", "local.retention.bytes": "-1"},
            "local.retention.bytes",
            "Invalid value -1 for configuration local.retention.bytes: Value must not be -1 as"
            " retention.bytes value is set as 5.",
        ),
    ],
)
def test_invalid_topic_configs_are_refused_with_key_and_reason(broker, overrides, key, reason):
    with pytest.raises(ConfigError) as caught:
        TopicConfig.validate(overrides, broker)
    assert caught.value.key == key
    assert reason in str(caught.value)


def test_valid_tiered_and_diskless_configs_are_accepted():
    config = TopicConfig.validate({"remote.storage.enable": "true", "local.retention.ms": "5"}, TIERED)
    assert config.is_tiered
    assert config.local_retention_ms == 5
    assert TopicConfig.validate({"diskless.enable": "true"}, TIERED).is_diskless


def test_the_kind_of_a_topic_does_not_follow_the_brokers_default():
    diskless = BrokerConfig({"diskless.system.enable": "true", "log.diskless.enable": "true"})
    old = TopicConfig.effective(diskless, {})
    assert not old.is_diskless
    entry = old.entry("diskless.enable")
    assert (entry.text, entry.source, entry.synonyms) == ("false", ConfigSource.DEFAULT, ())
    assert TopicConfig.default_of_new(diskless, "diskless.enable") == "true"
    own = TopicConfig.effective(diskless, {"diskless.enable": "true"}).entry("diskless.enable")
    assert [(one.name, one.text) for one in own.synonyms] == [("diskless.enable", "true")]


def test_the_configuration_page_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert page.read_text() == configuration_page(), (
        "run: python -m moldau.config.docs > docs/configuration.md"
    )
