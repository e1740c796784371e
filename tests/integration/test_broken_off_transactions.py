"""Transactions that their producer cannot end as planned. No reader and no later transaction waits forever
for such a transaction."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from deadlines import TIMEOUT_S, eventually
from test_transactions import create, producer, values

from moldau.cli.main import main
from moldau.testing import Node

PROPERTIES = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}


@pytest.fixture(scope="module")
def node(kind: str) -> Iterator[Node]:
    with Node(diskless=kind == "diskless", properties=PROPERTIES) as running:
        yield running


def plain(bootstrap: str, topic: str, value: str) -> None:
    writer = Producer({"bootstrap.servers": bootstrap})
    writer.produce(topic, value, partition=0)
    assert writer.flush(TIMEOUT_S) == 0


def described(bootstrap: str, transactional_id: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["transactions", "describe", transactional_id, "--json", "--bootstrap", bootstrap]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    return str(row["state"])


def test_an_abandoned_transaction_delays_readers_only_until_its_time_out(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    gone = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": topic,
            "transaction.timeout.ms": 1000,
            "log_level": 0,
        }
    )
    gone.init_transactions(TIMEOUT_S)
    gone.begin_transaction()
    gone.produce(topic, "gone", partition=0)
    gone.flush()
    plain(bootstrap, topic, "behind it")
    found = eventually(lambda: values(bootstrap, topic), "the transaction is aborted")
    assert found == ["behind it"]
    with pytest.raises(KafkaException) as refused:
        gone.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_TXN_STATE)
    assert values(bootstrap, topic) == ["behind it"]


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_a_topic_that_is_deleted_in_a_transaction_does_not_stop_it(
    bootstrap: str, topic: str, commits: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    deleted = f"{topic}-deleted"
    create(bootstrap, topic, deleted)
    transactional = producer(bootstrap, topic)
    transactional.begin_transaction()
    for name in (topic, deleted):
        transactional.produce(name, "in the transaction", partition=0)
    transactional.flush()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([deleted])[deleted].result(TIMEOUT_S)
    if commits:
        transactional.commit_transaction(TIMEOUT_S)
    else:
        transactional.abort_transaction(TIMEOUT_S)
    state = "CompleteCommit" if commits else "CompleteAbort"
    eventually(lambda: described(bootstrap, topic, capsys) == state, "the transaction has ended")
    transactional.begin_transaction()
    transactional.produce(topic, "next", partition=0)
    transactional.commit_transaction(TIMEOUT_S)
    expected = ["in the transaction", "next"] if commits else ["next"]
    eventually(lambda: values(bootstrap, topic) == expected, "the next transaction is read")
    # A new topic with the name of the deleted topic contains no records of the transaction.
    eventually(lambda: created_again(bootstrap, deleted), "the topic is created again")
    plain(bootstrap, deleted, "new")
    assert values(bootstrap, deleted) == ["new"]


def created_again(bootstrap: str, topic: str) -> bool:
    try:
        create(bootstrap, topic)
    except KafkaException:
        return False
    return True


def test_a_time_out_above_the_maximum_is_refused(bootstrap: str, topic: str) -> None:
    patient = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": topic,
            "transaction.timeout.ms": 900_001,
            "log_level": 0,
        }
    )
    with pytest.raises(KafkaException) as refused:
        patient.init_transactions(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT
