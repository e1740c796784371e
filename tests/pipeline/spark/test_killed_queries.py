"""A streaming query that writes transactions. Its driver is killed several times, with all processes of its
session."""

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from spark_support import missing_spark

import moldau.testing

if reason := missing_spark():
    pytest.skip(reason, allow_module_level=True)

pytestmark = [pytest.mark.timeout(600), pytest.mark.real_time]

RECORDS = 180
KILLS = 2
DEADLINE_S = 240.0
OUTPUTS = {"out-classic": "false", "out-diskless": "true"}

QUERY = """
import sys
from moldau.pipeline.data_source import register
from moldau.pipeline.session import open_session

bootstrap, checkpoint = sys.argv[1:]
session = open_session("local[2,2]", **{"spark.driver.memory": "512m"})
register(session)
options = {"kafka.bootstrap.servers": bootstrap}
rows = (
    session.readStream.format("moldau").options(**options)
    .options(subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="10").load()
    .selectExpr("CAST(value AS STRING) AS value")
    .selectExpr("value", "explode(array('out-classic', 'out-diskless')) AS topic")
)
sink = rows.writeStream.format("moldau").options(**options)
sink = sink.options(**{"kafka.transactional.id": "query", "checkpointLocation": checkpoint})
sink.trigger(processingTime="0 seconds").start().awaitTermination()
"""


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node(diskless=True) as running:
        yield running


def prepare(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(name, 2, config={"diskless.enable": flag}) for name, flag in OUTPUTS.items()]
    for created in admin.create_topics([NewTopic("in", 1), *wanted]).values():
        created.result(60)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce("in", str(number), partition=0)
    assert producer.flush(60) == 0


class Committed:
    """The committed records of the outputs."""

    def __init__(self, bootstrap: str) -> None:
        options = {"group.id": "judge", "isolation.level": "read_committed", "enable.auto.commit": False}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, **options})
        self._consumer.assign([TopicPartition(topic, index, 0) for topic in OUTPUTS for index in range(2)])
        self.values: dict[str, list[int]] = {topic: [] for topic in OUTPUTS}

    def until(self, count: int, log: pathlib.Path) -> None:
        """Read until each output has ``count`` records."""
        deadline = time.monotonic() + DEADLINE_S
        while any(len(found) < count for found in self.values.values()):
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.values[message.topic()].append(int(message.value()))

    def close(self) -> None:
        self._consumer.close()


def test_each_batch_is_written_once_although_the_driver_is_killed(
    node: moldau.testing.Node, tmp_path: pathlib.Path
) -> None:
    prepare(node.bootstrap_servers)
    reader = Committed(node.bootstrap_servers)
    log = tmp_path / "query.log"
    command = [sys.executable, "-c", QUERY, node.bootstrap_servers, str(tmp_path / "checkpoint")]
    try:
        for run in range(KILLS + 1):
            with log.open("ab") as output:
                query = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
            try:
                reader.until(RECORDS * (run + 1) // (KILLS + 1), log)
            finally:
                os.killpg(query.pid, signal.SIGKILL)  # the query is writing the next batch
                query.wait(60)
        for found in reader.values.values():
            assert sorted(found) == list(range(RECORDS))
    finally:
        reader.close()
