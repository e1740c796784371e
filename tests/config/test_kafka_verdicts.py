"""Every key accepts exactly the values that Kafka accepts. Both systems get values below, at and beyond each
limit.

Kafka's verdicts are in ``golden/kafka_verdicts.txt``. ``pytest tests/config --rewrite`` runs Kafka's own
classes again, which needs Java and Kafka's jars.
"""

import os
import re
import shutil
from typing import NamedTuple

import pytest
from combined_cases import combined_cases
from explained_differences import DIFFERENCES, Difference, explanation
from kafka_verdicts import (
    BASE,
    GOLDEN,
    JARS,
    Case,
    as_mapping,
    ask_kafka,
    parse_keys,
    read_table,
    single_cases,
    verdicts,
    write_table,
)

from moldau.cluster.image.image import ResourceType
from moldau.cluster.kafka_config_policy import KafkaConfigPolicy
from moldau.config import BROKER as BROKER_KEYS
from moldau.config import TOPIC as TOPIC_KEYS
from moldau.config import BrokerConfig, ConfigError, ConfigType, TopicConfig
from moldau.config.client_metrics import CLIENT_METRICS
from moldau.config.group import GROUP as GROUP_KEYS
from moldau.coordinators.groups.settings import group_settings
from moldau.coordinators.transactions.settings import transaction_settings
from moldau.runtime import KafkaError
from moldau.server import settings

BROKER = BrokerConfig.from_properties(BASE)
POLICY = KafkaConfigPolicy(lambda: BROKER)
NUMBERS = (ConfigType.SHORT, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE)
RESOURCES = {
    "dynamic-broker": (ResourceType.BROKER, "1"),
    "dynamic-default": (ResourceType.BROKER, ""),
    "topic": (ResourceType.TOPIC, "topic"),
    "group": (ResourceType.GROUP, "group"),
    "client-metrics": (ResourceType.CLIENT_METRICS, "subscription"),
}


def refusal(case: Case) -> str | None:
    """Moldau's error message for a case that Moldau refuses. An exception of any other type fails
    the test."""
    try:
        if case.surface == "static":
            BrokerConfig.from_properties(BASE, as_mapping(case))
        else:
            POLICY.validate(*RESOURCES[case.surface], as_mapping(case))
    except ConfigError as error:
        return str(error)
    except KafkaError as error:
        return str(error.message)
    return None


class CheckedCase(NamedTuple):
    """A case with the verdicts of Kafka and Moldau. Moldau's verdict is its error message, or ``None`` if it
    accepts the case."""

    case: Case
    kafka_accepts: bool
    refusal: str | None


@pytest.fixture(scope="module")
def checked() -> list[CheckedCase]:
    return [CheckedCase(case, accepts, refusal(case)) for case, accepts in read_table(GOLDEN.read_text())]


def test_each_difference_from_kafka_is_explained(checked: list[CheckedCase]) -> None:
    unexplained = []
    used: set[Difference] = set()
    for case, kafka_accepts, reason in checked:
        if (reason is None) is kafka_accepts:
            continue
        why = explanation(case, moldau_accepts=reason is None)
        if why is None:
            unexplained.append((case.line, "Kafka refuses it" if reason is None else reason))
        else:
            used.add(why)
    assert unexplained == []
    assert [difference.reason for difference in DIFFERENCES if difference not in used] == []


def test_a_refusal_is_one_line_that_names_a_key(checked: list[CheckedCase]) -> None:
    names = {key.name for keys in (BROKER_KEYS, TOPIC_KEYS, GROUP_KEYS, CLIENT_METRICS) for key in keys}
    for case, _, reason in checked:
        if reason is not None:
            assert "\n" not in reason, case
            assert any(word.strip(".,:`'()=") in {*names, *as_mapping(case)} for word in words(reason)), (
                reason
            )


def test_a_refusal_of_a_number_names_the_value(checked: list[CheckedCase]) -> None:
    for case, _, reason in checked:
        (key, text), *others = case.given
        if case.surface == "static" and reason is not None and not others:
            value = text.strip()
            shown = {value, str(int(value)) if re.fullmatch(r"[+-]?\d+", value) else value}
            is_number = BROKER_KEYS[key].type in NUMBERS if key in BROKER_KEYS else False
            assert not is_number or value == "1e400" or any(each in reason for each in shown), (case, reason)


def words(reason: str) -> list[str]:
    return reason.replace("=", " ").split()


def test_accepted_values_can_be_used(checked: list[CheckedCase]) -> None:
    for case, _, reason in checked:
        given = as_mapping(case)
        if reason is not None:
            continue
        match case.surface:
            case "static":
                use_broker(BrokerConfig.from_properties(BASE, given))
            case "dynamic-broker":
                use_broker(BROKER.with_dynamic({}, given))
            case "topic":
                use_topic(TopicConfig.effective(BROKER, given))


def use_broker(config: BrokerConfig) -> None:
    """Compute all values that a node derives from its configuration at its start and at each change."""
    settings.log_manager_settings(config)
    settings.network_limits(config)
    settings.broker_listeners(config)
    settings.controller_settings(config, "cluster")
    settings.quorum_config(config, "cluster")
    settings.metadata_log_config(config)
    group_settings(config)
    transaction_settings(config)
    use_topic(TopicConfig.effective(config, {}))


def use_topic(config: TopicConfig) -> None:
    settings.classic_log_config("topic", config)


@pytest.mark.java
def test_the_golden_table_has_kafkas_verdicts(pytestconfig: pytest.Config) -> None:
    java = shutil.which("java")
    if java is None or not JARS.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail("java or Kafka's jars are missing")
        pytest.skip("java or Kafka's jars are missing (tools/fetch_clients.py fetches them)")
    cases = [*single_cases(parse_keys(ask_kafka(java, "keys"))), *combined_cases()]
    table = write_table(zip(cases, verdicts(java, cases), strict=True))
    if pytestconfig.getoption("--rewrite", default=False):
        GOLDEN.write_text(table)
    assert table == GOLDEN.read_text()
