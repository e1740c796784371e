"""librdkafka, called by ctypes from the wheel of confluent-kafka. Batches are produced and consumed without
Python objects.

confluent-kafka's own interface makes one Python object for each record, and its cost would dominate the
measurement. Here a producer hands over an array of messages that share one payload
(``rd_kafka_produce_batch``). A consumer reads its queue in C (``rd_kafka_consume_callback_queue`` with a
callback that does nothing).
"""

import ctypes
import importlib.util
import itertools
import pathlib
import random
import time
from collections.abc import Mapping
from typing import Any, Final

PRODUCER: Final = 0
CONSUMER: Final = 1
OFFSET_BEGINNING: Final = -2
FLAG_NONE: Final = 0
ERROR_TEXT_BYTES: Final = 512
NEW_TOPIC_ERRORS: Final = (-190, -188, 3, 5, 6)
"""The errors about a topic that was just created. The client (negative numbers) or the broker does not know
the topic, or the broker does not yet lead the partition."""
TOPIC_TIMEOUT_S: Final = 10.0
DIFFERENT_CALLS: Final = 20


class Message(ctypes.Structure):
    """``rd_kafka_message_t``."""

    _fields_ = (
        ("err", ctypes.c_int),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


def _load() -> Any:
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        raise SystemExit("bench needs confluent-kafka (in the dev requirements)")
    folder = pathlib.Path(spec.origin).parent.parent / "confluent_kafka.libs"
    found = sorted(folder.glob("librdkafka*.so*"))
    if not found:
        raise SystemExit(f"no librdkafka in {folder}: the wheel of confluent-kafka for Linux has one")
    return ctypes.CDLL(str(found[0]))


def _declare(lib: Any) -> Any:
    pointer, integer, wide, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
    size = ctypes.c_size_t
    for name, result, arguments in (
        ("rd_kafka_version_str", text, []),
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_conf_set", integer, [pointer, text, text, text, size]),
        ("rd_kafka_new", pointer, [integer, pointer, text, size]),
        ("rd_kafka_topic_new", pointer, [pointer, text, pointer]),
        ("rd_kafka_topic_destroy", None, [pointer]),
        ("rd_kafka_produce_batch", integer, [pointer, ctypes.c_int32, integer, pointer, integer]),
        ("rd_kafka_outq_len", integer, [pointer]),
        ("rd_kafka_poll", integer, [pointer, integer]),
        ("rd_kafka_flush", integer, [pointer, integer]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_queue_new", pointer, [pointer]),
        ("rd_kafka_queue_destroy", None, [pointer]),
        ("rd_kafka_consume_start_queue", integer, [pointer, ctypes.c_int32, wide, pointer]),
        ("rd_kafka_consume_stop", integer, [pointer, ctypes.c_int32]),
        ("rd_kafka_consume_callback_queue", integer, [pointer, integer, pointer, pointer]),
        (
            "rd_kafka_query_watermark_offsets",
            integer,
            [pointer, text, ctypes.c_int32, ctypes.POINTER(wide), ctypes.POINTER(wide), integer],
        ),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


lib = _declare(_load())
do_nothing = ctypes.cast(lib.rd_kafka_message_errstr, ctypes.c_void_p)
"""A function that reads a message and does nothing: the callback of the draining consumer."""


def version() -> str:
    """librdkafka's version."""
    text: bytes = lib.rd_kafka_version_str()
    return text.decode()


class Client:
    """A librdkafka handle for one topic. Settings that are not given have librdkafka's defaults."""

    def __init__(self, kind: int, bootstrap: str, topic: str, settings: Mapping[str, str]) -> None:
        error = ctypes.create_string_buffer(ERROR_TEXT_BYTES)
        conf = lib.rd_kafka_conf_new()
        for name, value in {"bootstrap.servers": bootstrap, "log_level": "4", **settings}.items():
            if lib.rd_kafka_conf_set(conf, name.encode(), value.encode(), error, ERROR_TEXT_BYTES):
                raise RuntimeError(error.value.decode())
        self._handle = lib.rd_kafka_new(kind, conf, error, ERROR_TEXT_BYTES)
        if not self._handle:
            raise RuntimeError(error.value.decode())
        self._name = topic.encode()
        self._topic = lib.rd_kafka_topic_new(self._handle, self._name, None)

    def end_offset(self, partition: int) -> int:
        """The high watermark according to the broker. The call waits until the brokers know the topic."""
        low, high = ctypes.c_int64(), ctypes.c_int64()
        deadline_s = time.monotonic() + TOPIC_TIMEOUT_S
        while code := lib.rd_kafka_query_watermark_offsets(
            self._handle, self._name, partition, ctypes.byref(low), ctypes.byref(high), 10_000
        ):
            if code not in NEW_TOPIC_ERRORS or time.monotonic() > deadline_s:
                raise RuntimeError(f"watermark of partition {partition}: error {code}")
            time.sleep(0.05)
        return high.value

    def close(self) -> None:
        lib.rd_kafka_topic_destroy(self._topic)
        lib.rd_kafka_destroy(self._handle)


class BatchProducer(Client):
    """Produces copies of one payload, at most ``batch_count`` in each call."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        payload_size_bytes: int,
        batch_count: int,
        settings: Mapping[str, str],
        compressible: bool = False,
    ) -> None:
        """The records have zeros as their values. If they are ``compressible``, half of each value is random,
        and different in each of the last :data:`DIFFERENT_CALLS` calls of :meth:`produce`."""
        super().__init__(PRODUCER, bootstrap, topic, settings)
        calls = DIFFERENT_CALLS if compressible else 1
        count = calls * batch_count if compressible else 1
        self._payloads = ctypes.create_string_buffer(count * payload_size_bytes)
        if compressible:
            half, content = payload_size_bytes // 2, random.Random(1)
            for number in range(count):
                start = number * payload_size_bytes
                self._payloads[start : start + half] = content.randbytes(half)
        address = ctypes.addressof(self._payloads)
        self._calls = [(Message * batch_count)() for _ in range(calls)]
        for number, message in enumerate(itertools.chain(*self._calls)):
            message.payload = address + number % count * payload_size_bytes
            message.len = payload_size_bytes
        self._turn = itertools.cycle(self._calls)

    def produce(self, partition: int, count: int) -> None:
        """Put ``count`` records into librdkafka's queue. Wait while the queue is full. ``count`` is at most
        the ``batch_count`` of the constructor.
        """
        messages = next(self._turn)
        while count:
            # librdkafka does not copy or free the payload, which exists longer than every message
            count -= lib.rd_kafka_produce_batch(self._topic, partition, FLAG_NONE, messages, count)
            if count:
                lib.rd_kafka_poll(self._handle, 1)

    def flush(self, timeout_s: float) -> None:
        """Wait for every acknowledgement."""
        if lib.rd_kafka_flush(self._handle, int(timeout_s * 1000)):
            raise RuntimeError(f"{lib.rd_kafka_outq_len(self._handle)} records were not acknowledged")


class DrainingConsumer(Client):
    """Consumes whole partitions and counts the records."""

    def __init__(self, bootstrap: str, topic: str, settings: Mapping[str, str]) -> None:
        super().__init__(CONSUMER, bootstrap, topic, settings)
        self._queue = lib.rd_kafka_queue_new(self._handle)

    def drain(self, partitions: int, records: int, timeout_s: float) -> None:
        """Read ``records`` records from the beginning of ``partitions`` partitions."""
        for partition in range(partitions):
            if lib.rd_kafka_consume_start_queue(self._topic, partition, OFFSET_BEGINNING, self._queue):
                raise RuntimeError(f"consumer did not start on partition {partition}")
        deadline = time.monotonic() + timeout_s
        left = records
        while left > 0:
            left -= max(0, lib.rd_kafka_consume_callback_queue(self._queue, 100, do_nothing, None))
            if time.monotonic() > deadline:
                raise RuntimeError(f"{left} of {records} records did not arrive in {timeout_s} s")
        for partition in range(partitions):
            lib.rd_kafka_consume_stop(self._topic, partition)

    def close(self) -> None:
        lib.rd_kafka_queue_destroy(self._queue)
        super().close()
