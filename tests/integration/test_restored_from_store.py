"""A node loses all disks, and is restored from its object store. librdkafka's clients use it before and
after."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from deadlines import TIMEOUT_S, consume, eventually
from dev_process import dev_process
from librdkafka_clients import create

from moldau.backup.cut_format import parse_cut
from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC

CUTS = ".moldau/backup/cuts"
OPTIONS = ["--set", "backup.interval.ms=300", "--set", "remote.log.manager.task.interval.ms=100"]
TIERED = 35
"""Records of the tiered topic. Ten of them fill a segment of the smallest size. Segments are copied when they
are closed."""
TRUNCATION = (KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET)


def _send(producer: Producer, name: str, count: int) -> None:
    for number in range(count):
        producer.produce("t", f"{name}-{number}".encode(), partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def _cuts(store: Path) -> list[Path]:
    """The objects of the saved states, oldest first."""
    return sorted(each for each in (store / CUTS).glob("*") if not each.name.endswith(".uploading"))


def _has_offsets(cut: Path) -> bool:
    logs = parse_cut(cut.read_bytes()).logs.values()
    return any(log.topic == CONSUMER_OFFSETS_TOPIC and log.pieces for log in logs)


def _create_tiered(bootstrap: str) -> None:
    tiering = {"remote_storage_enable": "true", "segment_bytes": str(1 << 20), "retention_ms": "-1"}
    create(bootstrap, "past", partitions=1, diskless_enable="false", **tiering)


def _send_tiered(bootstrap: str) -> None:
    _create_tiered(bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "batch.size": 100_000})
    _send_large(producer)


def _send_large(producer: Producer) -> None:
    for number in range(TIERED):
        producer.produce("past", b"%d " % number + bytes(100_000), partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def _check_tiered(bootstrap: str) -> None:
    """Check that the records of remote segments are restored, and that new records get the offsets after
    them."""
    reader = _reader(bootstrap)
    past = TopicPartition("past", 0)
    first, end = reader.get_watermark_offsets(past, TIMEOUT_S)
    assert first == 0
    assert 20 <= end < TIERED
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("past", b"after", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    reader.assign([TopicPartition("past", 0, 0)])
    messages = consume(reader, end + 1)
    assert [message.offset() for message in messages] == list(range(end + 1))
    values = [(message.value() or b"").split(b" ")[0] for message in messages]
    assert values == [*(b"%d" % number for number in range(end)), b"after"]
    assert messages[-1].leader_epoch() > messages[0].leader_epoch()
    reader.close()


def _reader(bootstrap: str, group: str = "reader", isolation: str = "read_committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "isolation.level": isolation,
        }
    )


def _moldau(*arguments: str) -> str:
    command = [sys.executable, "-m", "moldau", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _config(folder: Path) -> Path:
    """The properties file of the restored node."""
    config = folder / "server.properties"
    config.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:0\n"
        "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={folder}/new\ndiskless.system.enable=true\nremote.log.storage.system.enable=true\ndiskless.storage.url=file://{folder}/store\n"
        "remote.log.metadata.topic.num.partitions=4\n"
    )
    return config


def _restore(folder: Path) -> None:
    """Restore from the store, as ``moldau dev`` does before it starts."""
    config = _config(folder)
    command = ("storage", "restore", "--config", str(config), "--json")
    seen = json.loads(_moldau(*command, "--dry-run"))
    assert (seen["missing"], seen["diskless_topics"], seen["recommitted_records"]) == ([], 1, None)
    assert not (folder / "new").exists()
    done = json.loads(_moldau(*command))
    assert done["recommitted_records"] == 5
    assert done["aborted_transactions"] == 1
    status = json.loads(_moldau("storage", "backup", "status", "--config", str(config), "--json"))
    assert status["saved_ms"][-1] == seen["saved_ms"]


def test_a_cluster_comes_back_and_consumers_notice_what_is_lost(tmp_path: Path) -> None:
    store = tmp_path / "old" / "objects"
    with dev_process(tmp_path / "old", kind="diskless", options=OPTIONS) as node:
        port, bootstrap = node.port, node.bootstrap
        create(bootstrap, "t", partitions=1)
        _send_tiered(bootstrap)
        eventually(lambda: len(list(store.glob("tiered/past-*/0/*.log"))) >= 3, "closed segments are copied")
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        _send(producer, "saved", 50)
        open_one = Producer({"bootstrap.servers": bootstrap, "transactional.id": "open"})
        open_one.init_transactions(TIMEOUT_S)
        open_one.begin_transaction()
        _send(open_one, "open", 1)
        group = _reader(bootstrap, "g")
        group.commit(offsets=[TopicPartition("t", 0, 20)], asynchronous=False)
        group.close()
        eventually(lambda: any(map(_has_offsets, _cuts(store))), "a saved state with offsets")
        saved = next(filter(_has_offsets, _cuts(store)))
        transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": "x"})
        transactional.init_transactions(TIMEOUT_S)
        transactional.begin_transaction()
        _send(transactional, "in-a-transaction", 3)
        transactional.commit_transaction(TIMEOUT_S)
        _send(producer, "late", 5)
        reader = _reader(bootstrap, isolation="read_uncommitted")
        reader.assign([TopicPartition("t", 0, 0)])
        read = consume(reader, 59)[-1]
        reader.close()
        assert (read.offset(), read.leader_epoch()) == (59, 0)
        node.kill()
    # The test deletes all later saved states, as if the disks were lost just after the first saved state that
    # contains the group's offsets.
    for cut in _cuts(store):
        if cut > saved:
            cut.unlink()
    shutil.move(store, tmp_path / "store")
    shutil.rmtree(tmp_path / "old")
    _restore(tmp_path)
    url = f"file://{tmp_path}/store"
    options = [*OPTIONS, "--set", f"diskless.storage.url={url}", "--set", f"rsm.config.url={url}"]
    with dev_process(tmp_path / "new", port, "diskless", options) as node:
        again = _reader(node.bootstrap, "g")
        again.assign([TopicPartition("t", 0, 0)])
        messages = consume(again, 55)
        values = [(message.offset(), message.value()) for message in messages]
        assert values[:50] == [(number, b"saved-%d" % number) for number in range(50)]
        assert [value for _, value in values[50:]] == [b"late-%d" % number for number in range(5)]
        (committed,) = again.committed([TopicPartition("t", 0)], TIMEOUT_S)
        assert committed.offset == 20
        again.close()
        assert [message.leader_epoch() for message in messages] == [0] * 50 + [1] * 5
        _check_tiered(node.bootstrap)
        # The restore aborts the transaction that was open, and fences its producer.
        with pytest.raises(KafkaException):
            open_one.commit_transaction(TIMEOUT_S)
        # A reader of the old cluster continues in the restored cluster. At the reader's next offset, the
        # restored cluster has a different record. The reader must get an error instead of this record.
        _send(producer, "after", 20)
        reader = _reader(node.bootstrap)
        reader.assign([TopicPartition("t", 0, read.offset() + 1, leader_epoch=read.leader_epoch())])
        message = None
        while message is None:
            message = reader.poll(TIMEOUT_S)
        assert message.error() is not None, message.value()
        assert message.error().code() in TRUNCATION
        reader.close()
        assert node.terminate()[0] == 0


def test_readers_pass_a_transaction_whose_marker_was_not_in_the_tier(tmp_path: Path) -> None:
    """The marker was in the active segment. The outcome is lost with it, so the transaction is aborted."""
    store = tmp_path / "old" / "objects"
    with dev_process(tmp_path / "old", kind="diskless", options=OPTIONS) as node:
        port, bootstrap = node.port, node.bootstrap
        _create_tiered(bootstrap)
        producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": "committed", "batch.size": 100_000}
        )
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        _send_large(producer)
        producer.commit_transaction(TIMEOUT_S)
        eventually(lambda: len(list(store.glob("tiered/past-*/0/*.log"))) >= 3, "closed segments are copied")
        group = _reader(bootstrap, "g")
        group.commit(offsets=[TopicPartition("past", 0, 20)], asynchronous=False)
        group.close()
        eventually(lambda: any(map(_has_offsets, _cuts(store))), "a saved state with offsets")
        node.kill()
    shutil.move(store, tmp_path / "store")
    shutil.rmtree(tmp_path / "old")
    done = json.loads(
        _moldau("storage", "restore", "--config", str(_config(tmp_path)), "--no-wait", "--json")
    )
    assert done["aborted_transactions"] == 1
    url = f"file://{tmp_path}/store"
    options = [*OPTIONS, "--set", f"diskless.storage.url={url}", "--set", f"rsm.config.url={url}"]
    with dev_process(tmp_path / "new", port, "diskless", options) as node:
        plain = Producer({"bootstrap.servers": node.bootstrap})
        plain.produce("past", b"after", partition=0)
        assert plain.flush(TIMEOUT_S) == 0
        for isolation, count in (("read_committed", 1), ("read_uncommitted", 21)):
            reader = _reader(node.bootstrap, isolation=isolation)
            reader.assign([TopicPartition("past", 0, 0)])
            messages = consume(reader, count)
            reader.close()
            first = b"after" if count == 1 else b"0"
            assert (messages[0].value() or b"").split(b" ")[0] == first
        assert node.terminate()[0] == 0


def test_nothing_is_restored_without_a_saved_state(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "moldau", "dev", "--port", "0", "--data", str(tmp_path / "new")]
    (tmp_path / "store").mkdir()
    done = subprocess.run(
        [*command, "--restore-from", f"file://{tmp_path}/store"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("moldau: ")
    assert "no state of a cluster is saved" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list((tmp_path / "new").iterdir())
