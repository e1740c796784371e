"""A broker confirms a transaction itself only while the metadata name it as the leader of the coordinator."""

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.coordinators.transactions.transaction import ProducerIdentity
from moldau.protocol.partitions import TopicPartition
from moldau.server.handlers.records.transaction_markers import Participation
from moldau.server.subsystems.transactions.verifier import TransactionVerifier

ORDERS = TopicPartition("orders", 0)


class Coordinator:
    """A coordinator on this broker. It confirms everything, also after it has lost the leadership."""

    def partition_of(self, name: str) -> int:
        assert name
        return 3

    def confirms(self, name: str, producer: ProducerIdentity, partition: TopicPartition) -> bool:
        return True


@pytest.mark.parametrize(
    ("leader", "name", "is_confirmed"),
    [(1, "tx", True), (2, "tx", False), (None, "tx", False), (1, "", False)],
)
def test_only_the_leader_confirms(leader: int | None, name: str, is_confirmed: bool) -> None:
    view: Any = SimpleNamespace(
        local_id=1, leader_of=lambda topic, partition: leader if partition == 3 else None
    )
    service: Any = Coordinator()
    unused: Any = None
    verifier = TransactionVerifier(view, service, unused, unused)
    wanted = Participation(name, ProducerIdentity(7, 0), ORDERS, False)
    assert verifier.is_confirmed(wanted) is is_confirmed
