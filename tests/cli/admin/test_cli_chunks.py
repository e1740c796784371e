"""``moldau chunks`` against a node whose topics have no chunks."""

import json
from typing import Any

import pytest


@pytest.fixture
def topic(run: Any) -> str:
    run("topics", "create", "numbers", "-p", "2")
    return "numbers"


def test_topics_without_chunks_have_none_to_list(run: Any, topic: str) -> None:
    assert json.loads(run("chunks", "list", "--json").out) == []
    assert "CHUNK START" not in run("topics", "describe", topic).out
    assert "chunks" not in json.loads(run("topics", "describe", topic, "--json").out)[0]["partitions"][0]
    unknown = run("chunks", "list", "--topic", "nothing")
    assert (unknown.code, unknown.err) == (1, "moldau: topic nothing does not exist\n")


def test_a_plan_names_the_brokers_of_the_next_chunk(run: Any, topic: str) -> None:
    rows = json.loads(run("chunks", "plan", "--topic", topic, "--json").out)
    assert rows == [
        {"topic": topic, "partition": index, "active": [1], "replicas": [1]} for index in range(2)
    ]


def test_the_controller_refuses_to_move_a_chunk_that_does_not_exist(run: Any, topic: str) -> None:
    refused = run("chunks", "alter", "--topic", topic, "-p", "0", "--start-offset", "5", "--replicas", "1")
    assert refused.code == 1
    assert "RESOURCE_NOT_FOUND: No inactive chunk of numbers-0 begins at 5" in refused.err


@pytest.mark.parametrize("options", [[], ["--replicas", "1", "--cancel"], ["--replicas", "one"]])
def test_a_move_is_either_begun_or_cancelled(run: Any, options: list[str]) -> None:
    assert run("chunks", "alter", "--topic", "t", "-p", "0", "--start-offset", "0", *options).code == 2


def test_nothing_is_created_at_level_0_of_the_feature(run: Any, topic: str) -> None:
    assert run("chunks", "create", "--topic", topic, "-p", "0", "--replicas", "1").code == 1
    assert run("chunks", "create", "--topic", topic, "-p", "7", "--replicas", "1").code == 1
    assert json.loads(run("chunks", "list", "--json").out) == []
