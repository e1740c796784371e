"""A node accepts the same values of Moldau's own keys at its start and while it runs: at, below and beyond
each limit."""

import pytest
from kafka_verdicts import BASE, GOLDEN, Case, Key, as_mapping, read_table, values_of

from moldau.cluster.image.image import ResourceType
from moldau.cluster.kafka_config_policy import KafkaConfigPolicy
from moldau.config import BROKER, BrokerConfig, ConfigError
from moldau.config.definition import ConfigKey, ConfigType, Limit, Update
from moldau.runtime import KafkaError

POLICY = KafkaConfigPolicy(lambda: BrokerConfig.from_properties(BASE))
INTEGERS = (ConfigType.SHORT, ConfigType.INT, ConfigType.LONG)
KAFKAS = {name for case, _ in read_table(GOLDEN.read_text()) for name in as_mapping(case)}
OWN = [key for key in BROKER if key.name not in KAFKAS]


def values(key: ConfigKey) -> list[str]:
    """The values that are tested for a key. They are chosen by the same rules as the golden table's values
    for Kafka's keys."""
    shown = key.format(key.default)
    default = shown if key.type in INTEGERS else None
    found = values_of(Key("broker", key.name, key.type.name, default, key.update.value, "", key.valid))
    return found if shown is None else [*found, shown]


def refused_at_start(case: Case) -> str | None:
    try:
        BrokerConfig.from_properties(BASE, as_mapping(case))
    except ConfigError as error:
        return str(error)
    return None


def refused_by_alter(case: Case) -> str | None:
    name = "1" if case.surface == "dynamic-broker" else ""
    try:
        POLICY.validate(ResourceType.BROKER, name, as_mapping(case))
    except KafkaError as error:
        return str(error.message)
    return None


@pytest.mark.parametrize("surface", ["dynamic-broker", "dynamic-default"])
def test_a_running_node_accepts_what_a_start_accepts(surface: str) -> None:
    wrong = []
    for key in OWN:
        for value in values(key):
            case = Case(surface, ((key.name, value),))
            start, alter = refused_at_start(case), refused_by_alter(case)
            if key.update is Update.READ_ONLY:
                expected: str | None = f"Cannot update these configs dynamically: {key.name}"
            else:
                assert key.limits is Limit.NONE  # if a key has limits, this test must check them, too
                expected = start
            if alter != expected:
                wrong.append((case.line, start, alter))
    assert wrong == []


def test_own_keys_are_compared() -> None:
    assert sum(key.update is not Update.READ_ONLY for key in OWN) >= 10
    assert len(OWN) >= 58
