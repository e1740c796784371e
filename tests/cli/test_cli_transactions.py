import json
import uuid

import pytest
from confluent_kafka import KafkaException, Producer


@pytest.fixture
def producer(run, node):
    """A producer with an open transaction in partition 0 of a topic. The name of the topic is also the
    transactional id."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    run("topics", "create", name, "-p", "1")
    made = Producer({"bootstrap.servers": node.bootstrap_servers, "transactional.id": name, "log_level": 0})
    made.init_transactions(30)
    made.begin_transaction()
    made.produce(name, "v", partition=0)
    made.flush()
    return name, made


def test_an_open_transaction_is_shown(run, producer):
    name, made = producer
    rows = json.loads(run("transactions", "list", "--state", "Ongoing", "--json").out)
    assert [row["state"] for row in rows if row["id"] == name] == ["Ongoing"]
    assert name not in run("transactions", "list", "--state", "Empty").out
    assert name not in run("transactions", "list", "--longer-than", "3600").out
    (row,) = json.loads(run("transactions", "describe", name, "--json").out)
    assert (row["state"], row["partitions"]) == ("Ongoing", [f"{name}-0"])
    assert f"{name}-0" in run("transactions", "describe", name).out
    made.commit_transaction(30)
    (row,) = json.loads(run("transactions", "describe", name, "--json").out)
    assert (row["state"], row["partitions"]) == ("CompleteCommit", [])


def test_an_aborted_transaction_fences_its_producer(run, producer):
    name, made = producer
    assert run("transactions", "abort", name, "--yes").out == f"fenced {name}\n"
    with pytest.raises(KafkaException):
        made.commit_transaction(30)
    assert run("consume", name, "--read-committed").out == ""


def test_a_missing_transactional_id_or_state_is_an_error(run):
    assert run("transactions", "describe", "nobody") == (
        1,
        "",
        "moldau: there is no transactional id nobody\n",
    )
    assert run("transactions", "list", "--state", "Open") == (1, "", "moldau: there is no state Open\n")
