import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.config import BROKER, TOPIC, BrokerConfig, ConfigError, ConfigKey, ConfigType, Update
from moldau.config.keys.synonyms import TOPIC_SYNONYMS


def key(type_, default=None):
    return ConfigKey("a.key", type_, default, "doc")


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (ConfigType.BOOLEAN, " TRUE ", True),
        (ConfigType.INT, "-7", -7),
        (ConfigType.LONG, "9223372036854775807", 2**63 - 1),
        (ConfigType.DOUBLE, "0.5", 0.5),
        (ConfigType.LIST, "a, b,c", ("a", "b", "c")),
        (ConfigType.LIST, "", ()),
        (ConfigType.STRING, " x y ", "x y"),
    ],
)
def test_values_are_parsed(type_, text, value):
    assert key(type_).parse(text) == value


@pytest.mark.parametrize(
    ("type_", "text", "reason"),
    [
        (ConfigType.BOOLEAN, "yes", "Expected value to be either true or false"),
        (ConfigType.INT, "1_000", "Not a number of type INT"),
        (ConfigType.INT, "2147483648", "Not a number of type INT"),
        (ConfigType.SHORT, "40000", "Not a number of type SHORT"),
        (ConfigType.LONG, "", "Not a number of type LONG"),
        (ConfigType.DOUBLE, "half", "Not a number of type DOUBLE"),
    ],
)
def test_bad_values_name_key_and_reason(type_, text, reason):
    with pytest.raises(ConfigError) as caught:
        key(type_).parse(text)
    assert caught.value.key == "a.key"
    assert str(caught.value) == f"Invalid value {text} for configuration a.key: {reason}"


@pytest.mark.parametrize("text", ["x" * 40_000, "a b\nc" * 1000, "\x00" * 500, "\u4e2d" * 3000])
def test_a_refusal_is_a_short_line_whatever_the_value(text):
    with pytest.raises(ConfigError) as caught:
        key(ConfigType.LONG).parse(f"1{text}1")
    assert str(caught.value).startswith("Invalid value 1")
    assert str(caught.value).endswith(" for configuration a.key: Not a number of type LONG")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_secrets_are_not_shown():
    with pytest.raises(ConfigError, match="hidden"):
        raise key(ConfigType.PASSWORD).error("hunter2", "no")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("num.partitions", "0", "Value must be at least 1"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "Value must be no more than 1"),
        ("log.cleanup.policy", "delete,shred", "String must be one of: compact, delete"),
        ("process.roles", "broker,broker", "Value must not contain duplicates"),
        (
            "compression.type",
            "brotli",
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
    ],
)
def test_values_out_of_bounds_are_refused_with_the_bound(name, text, reason):
    with pytest.raises(ConfigError) as caught:
        BROKER[name].parse(text)
    assert str(caught.value) == f"Invalid value {text} for configuration {name}: {reason}"


def test_lists_of_throttled_replicas_are_parsed():
    replicas = TOPIC["leader.replication.throttled.replicas"]
    assert replicas.parse("0:1,1:2") == ("0:1", "1:2")
    assert replicas.parse("*") == ("*",)
    with pytest.raises(ConfigError, match="literal"):
        replicas.parse("0-1")


def test_the_error_for_an_unknown_key_suggests_the_closest_key():
    with pytest.raises(ConfigError) as caught:
        BROKER.parse({"log.retention.hour": "1"})
    assert str(caught.value) == "Unknown configuration log.retention.hour. Did you mean log.retention.hours?"
    with pytest.raises(ConfigError, match=r"^Unknown configuration zz\.$"):
        BROKER.parse({"zz": "1"})


def test_plug_in_keys_are_passed_on():
    config = BrokerConfig({"rsm.config.bucket": "b", "rsm.config.region": "r"})
    assert config.passed_on("rsm.config.") == {"bucket": "b", "region": "r"}


def test_plug_ins_may_have_prefixes_of_their_own():
    config = BrokerConfig({"remote.log.storage.manager.impl.prefix": "cold.", "cold.bucket": "b"})
    assert config.passed_on("cold.") == {"bucket": "b"}
    with pytest.raises(ConfigError, match=r"Unknown configuration cold\.bucket"):
        BrokerConfig({"cold.bucket": "b"})


@pytest.mark.parametrize("definition", [BROKER, TOPIC], ids=["broker", "topic"])
def test_every_default_is_unchanged_after_formatting_and_parsing(definition):
    for each in definition:
        if each.default is not None:
            assert each.parse(each.format(each.default)) == each.default
        assert each.doc.endswith(".")


def test_synonyms_exist_and_agree_with_their_topic_configs():
    for name, synonyms in TOPIC_SYNONYMS.items():
        last = BROKER[synonyms[-1].name]
        assert synonyms[-1].convert(last.default) == TOPIC[name].default
        assert any(BROKER[synonym.name].update is Update.CLUSTER_WIDE for synonym in synonyms)


@given(st.floats(min_value=0, allow_infinity=False))
def test_doubles_are_written_so_that_they_are_read_back(value):
    double = key(ConfigType.DOUBLE)
    assert double.parse(double.format(value)) == value


def test_doubles_are_formatted_as_in_java():
    assert (
        BROKER["log.cleaner.io.max.bytes.per.second"].format(1.7976931348623157e308)
        == "1.7976931348623157E308"
    )
