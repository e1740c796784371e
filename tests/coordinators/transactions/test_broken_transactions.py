"""A record of ``__transaction_state`` that cannot be read affects only its own transactional id."""

import asyncio
from typing import NamedTuple

import pytest
from crc32c import crc32c
from transaction_house import LoopClock, RecordingWriter, new_service

from memory_coordinator_log import MemoryLog
from moldau.coordinators.transactions.codec import TransactionCodec, TransactionRecord
from moldau.coordinators.transactions.end_requests import Ending
from moldau.coordinators.transactions.init_requests import Initialization
from moldau.coordinators.transactions.service import TransactionService
from moldau.coordinators.transactions.shard import TransactionFilter
from moldau.coordinators.transactions.states import TransactionPhase
from moldau.coordinators.transactions.transaction import ProducerIdentity, Transaction
from moldau.protocol.partitions import TopicPartition
from moldau.records import Record, build_batch
from moldau.runtime import ErrorCode, KafkaError
from moldau.simulation.world.world import World

Pair = tuple[bytes | None, bytes | None]
CODEC = TransactionCodec()
PARTITIONS = frozenset({TopicPartition("t", 0)})


def record_of(name: str, state: TransactionPhase = TransactionPhase.COMPLETE_COMMIT) -> Pair:
    partitions = PARTITIONS if state is TransactionPhase.ONGOING else frozenset[TopicPartition]()
    value = Transaction(
        producer_id=7, producer_epoch=0, timeout_ms=60_000, state=state, partitions=partitions, start_ms=1
    )
    return CODEC.encode(TransactionRecord(name, value))


KEY, VALUE = record_of("other")
assert KEY is not None
assert VALUE is not None

FOREIGN: dict[str, Pair] = {
    "no key": (None, VALUE),
    "an empty key": (b"", VALUE),
    "a key that ends early": (KEY[:-2], VALUE),
    "a key that is no text": (KEY[:4] + b"\xff" * (len(KEY) - 4), VALUE),
}
UNREADABLE: dict[str, bytes] = {
    "an empty value": b"",
    "a value that ends early": VALUE[:-3],
    "a value of an unknown version": b"\x00\x63" + VALUE[2:],
    "a value with a rest": VALUE + b"x",
    "garbage": b"\x00\x00" + b"\xff" * 30,
    "a state that is not known": VALUE.replace(b"\x04", b"\x09", 1),
}


def batch_of(*pairs: Pair) -> bytearray:
    return bytearray(build_batch([Record(n, 1_000, key, value) for n, (key, value) in enumerate(pairs)]))


def unreadable_batch() -> bytearray:
    """A batch whose checksum is right, but whose content cannot be decoded as records."""
    batch = batch_of(record_of("other"))[:61] + b"\xff" * 20
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return batch


class Loaded(NamedTuple):
    """The state of a coordinator that has loaded a log: the errors of InitProducerId, the health, and the
    states of transactional ids."""

    answers: dict[str, ErrorCode]
    problem: str | None
    notice: str | None
    states: dict[str, TransactionPhase]


def load(*batches: bytearray, ask: tuple[str, ...] = ("before", "behind"), after_s: int = 1) -> Loaded:
    async def main() -> Loaded:
        log = MemoryLog()
        for batch in batches:
            log.append(batch)
        service = new_service(RecordingWriter(), LoopClock())
        service.runtime.load(0, 5, log)
        await asyncio.sleep(after_s)
        states: dict[str, TransactionPhase] = {}
        if service.runtime.problem() is None:
            found = await service.list_transactions(TransactionFilter())
            states = {name: each.state for name, each in found}
        answers = {name: await initialize(service, name) for name in ask}
        loaded = Loaded(answers, service.runtime.problem(), service.runtime.notice(), states)
        await service.close()
        return loaded

    with World(1) as world:
        return world.run(main())


async def initialize(service: TransactionService, name: str) -> ErrorCode:
    try:
        return (await service.init_producer(Initialization(name, 60_000))).error
    except KafkaError as error:
        return error.code


@pytest.mark.parametrize("kind", [*FOREIGN, "a batch"])
def test_records_that_no_coordinator_has_written_are_skipped(kind: str) -> None:
    broken = unreadable_batch() if kind == "a batch" else batch_of(FOREIGN[kind], record_of("beside"))
    loaded = load(batch_of(record_of("before")), broken, batch_of(record_of("behind")))
    assert loaded.problem is None
    assert loaded.notice == "__transaction_state-0: 1 broken records were skipped, the first at offset 1"
    assert set(loaded.answers.values()) == {ErrorCode.none}
    assert set(loaded.states) == {"before", "behind", *(() if kind == "a batch" else ("beside",))}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_an_id_whose_state_cannot_be_read_is_refused_alone(kind: str) -> None:
    loaded = load(
        batch_of(record_of("before"), record_of("other", TransactionPhase.ONGOING)),
        batch_of((KEY, UNREADABLE[kind])),
        batch_of(record_of("behind")),
        ask=("before", "other", "behind"),
        after_s=600,
    )
    assert loaded.notice == "__transaction_state-0: 1 broken records were skipped, the first at offset 2"
    refused = ErrorCode.coordinator_not_available
    assert loaded.answers == {"before": ErrorCode.none, "other": refused, "behind": ErrorCode.none}
    assert "other" not in loaded.states  # the transaction may be committed, so it is not aborted


def test_a_later_record_of_the_id_is_enough() -> None:
    loaded = load(batch_of((KEY, b"\x00\x00")), batch_of((KEY, VALUE)), ask=("other",))
    assert loaded.answers == {"other": ErrorCode.none}


def test_an_unreadable_state_answers_each_request_of_its_producer() -> None:
    async def main() -> None:
        log = MemoryLog()
        log.append(batch_of((KEY, b"\x00\x00")))
        service = new_service(RecordingWriter(), LoopClock())
        service.runtime.load(0, 5, log)
        await service.runtime.until_loaded(0)
        producer = ProducerIdentity(7, 0)
        for request in (
            service.add_partitions("other", producer, list(PARTITIONS), 0),
            service.verify("other", producer, list(PARTITIONS)),
            service.end(Ending("other", producer, True, 0)),
            service.describe("other"),
        ):
            with pytest.raises(KafkaError) as refusal:
                await request
            assert refusal.value.code is ErrorCode.coordinator_not_available
        await service.close()

    with World(1) as world:
        world.run(main())


def test_a_coordinator_does_not_load_if_a_damaged_batch_may_contain_an_outcome() -> None:
    damaged = batch_of(record_of("other"))
    damaged[-2] ^= 0xFF
    loaded = load(batch_of(record_of("before")), damaged, ask=("before",))
    assert loaded.answers == {"before": ErrorCode.coordinator_load_in_progress}
    assert loaded.problem is not None
    assert "__transaction_state-0 has a broken record at offset 1" in loaded.problem
