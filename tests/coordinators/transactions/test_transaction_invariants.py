"""Invariants of every transactional id. They must be true for any requests of producers in any order."""

from hypothesis import given, settings
from hypothesis import strategies as st
from transaction_model import TransactionModel

from moldau.coordinators.transactions.codec import TransactionCodec, TransactionRecord
from moldau.coordinators.transactions.settings import TransactionSettings
from moldau.coordinators.transactions.states import STATE_BY_NUMBER, TransactionPhase
from moldau.coordinators.transactions.transaction import EPOCH_MAX, NO_EPOCH, Transaction
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import KafkaError

IDS = st.sampled_from(["a", "b"])
AGE = st.integers(0, 3)
"""The age of the producer id and epoch that the producer sends. 0 means the newest id and epoch."""
COMMANDS = st.one_of(
    st.tuples(st.just("init"), IDS, st.booleans(), AGE),
    st.tuples(st.just("add"), IDS, st.sampled_from([0, 2]), AGE),
    st.tuples(st.just("commit"), IDS, st.sampled_from([0, 2]), AGE),
    st.tuples(st.just("abort"), IDS, st.sampled_from([0, 2]), AGE),
    st.tuples(st.sampled_from(["complete", "restart", "wait", "exhaust"])),
)


@settings(max_examples=50)
@given(st.lists(COMMANDS, max_size=40))
def test_identities_only_grow_and_decided_outcomes_stay(commands: list[tuple[object, ...]]) -> None:
    model = TransactionModel(TransactionSettings(timeout_check_interval_ms=1_000))
    given_out: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    for command in commands:
        before = dict(model.shard.by_id)
        try:
            answer = _run(model, command, given_out)
        except KafkaError:
            assert model.shard.by_id == before, "a refused request changed something"
            continue
        if answer is not None and answer[1] >= 0:
            name, *identity = answer
            assert identity[1] < EPOCH_MAX, "the last epoch is for fencing"
            assert not given_out[name] or tuple(identity) >= given_out[name][-1]
            given_out[name].append((identity[0], identity[1]))
        for name, now in model.shard.by_id.items():
            if (was := before.get(name)) is not None:
                _check_move(was, now)


def _run(
    model: TransactionModel, command: tuple[object, ...], given_out: dict[str, list[tuple[int, int]]]
) -> tuple[str, int, int] | None:
    match command:
        case ("init", str(name), bool(knows), int(age)):
            expected = _identity(given_out[name], age) if knows and given_out[name] else None
            return (name, *model.init(name, 5_000, expected)[1:])
        case ("add", str(name), int(version), int(age)):
            model.add(name, _identity(given_out[name], age), [("t", 0)], version)
        case ("commit" | "abort" as verb, str(name), int(version), int(age)):
            producer = _identity(given_out[name], age)
            return (name, *model.end(name, producer, committed=verb == "commit", version=version)[1:])
        case ("complete",):
            model.complete()
        case ("restart",):
            model.restart()
        case ("wait",):
            model.wait(3_000)
        case ("exhaust",):
            pass
    return None


def _identity(known: list[tuple[int, int]], age: int) -> tuple[int, int]:
    return known[-1 - age] if age < len(known) else (1, 0)


def _check_move(was: Transaction, now: Transaction) -> None:
    assert now.identity >= was.identity
    if was.state is TransactionPhase.PREPARE_COMMIT:
        assert now.state in (TransactionPhase.PREPARE_COMMIT, TransactionPhase.COMPLETE_COMMIT)
    if was.state is TransactionPhase.PREPARE_ABORT:
        assert now.state in (TransactionPhase.PREPARE_ABORT, TransactionPhase.COMPLETE_ABORT)
    if now.state.is_prepared and was.state is TransactionPhase.ONGOING:
        assert now.partitions == was.partitions, "every partition of the transaction gets a marker"


EPOCHS = st.integers(0, EPOCH_MAX)
PARTITIONS = st.frozensets(st.builds(TopicPartition, st.sampled_from(["t", "u"]), st.integers(0, 9)))


@settings(max_examples=25)
@given(
    st.builds(
        Transaction,
        producer_id=st.integers(0, 2**60),
        producer_epoch=EPOCHS,
        last_producer_epoch=st.just(NO_EPOCH),  # no record contains it
        previous_producer_id=st.integers(-1, 2**60),
        next_producer_id=st.integers(-1, 2**60),
        timeout_ms=st.integers(1, 2**31 - 1),
        state=st.sampled_from([state for state in STATE_BY_NUMBER.values() if state.number]),
        partitions=PARTITIONS,
        start_ms=st.integers(-1, 2**60),
        updated_ms=st.integers(-1, 2**60),
        client_version=st.integers(0, 2),
    )
)
def test_records_come_back_as_they_were(value: Transaction) -> None:
    codec = TransactionCodec()
    record = TransactionRecord("orders", value)
    assert codec.decode(*codec.encode(record)) == record
    assert codec.decode(*codec.encode(TransactionRecord("orders", None))) == TransactionRecord("orders", None)
