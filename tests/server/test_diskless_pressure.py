"""A store that is slower than its producers: they are read more slowly, and nothing is lost."""

from collections.abc import Mapping

import pytest
from confluent_kafka import Consumer, Producer

from moldau.runtime import KafkaError, Machine
from moldau.server.handlers import produce
from moldau.testing import Node

DISKLESS = {
    "diskless.system.enable": "true",
    "log.diskless.enable": "true",
    "diskless.storage.url": "memory://",
    "diskless.metadata.topic.num.partitions": "1",
}


def test_a_congested_writer_slows_producers_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[bool] = []
    original = produce.ProduceHandlers._slow_down

    def watched(self: produce.ProduceHandlers, context: object) -> None:
        assert self._is_congested is not None
        pauses.append(self._is_congested())
        original(self, context)  # type: ignore[arg-type]

    monkeypatch.setattr(produce.ProduceHandlers, "_slow_down", watched)
    with Node(properties=DISKLESS) as node:
        assert node._node is not None
        assert node._node._running is not None
        writer = node._node._running._diskless.runtime.writer  # type: ignore[union-attr]
        writer._settings = type(writer._settings)(max_buffered_bytes=2_000)
        producer = Producer(
            {
                "bootstrap.servers": node.bootstrap_servers,
                "linger.ms": 0,
                "batch.num.messages": 1,
                "enable.idempotence": True,
            }
        )
        for number in range(200):
            producer.produce("pressed", b"%600d" % number)
            producer.poll(0)
        assert producer.flush(30) == 0
        consumer = Consumer(
            {"bootstrap.servers": node.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["pressed"])
        seen = [int(message.value()) for _ in range(200) if (message := consumer.poll(10)) is not None]
        consumer.close()
    assert seen == list(range(200))
    assert any(pauses)


def refuse(properties: Mapping[str, str], machine: Machine) -> object:
    """Stands for a coordinator that cannot be made."""
    raise ValueError("it wants more configuration")


def test_another_batch_coordinator_is_loaded_by_its_name() -> None:
    name = f"{__name__}.refuse"
    with pytest.raises(KafkaError, match=r"diskless\.batch\.coordinator\.class\.name .*wants more"):
        Node(properties={**DISKLESS, "diskless.batch.coordinator.class.name": name}).start()
