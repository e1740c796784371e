"""The language of the golden scripts. A script has one command on each line, then ``----``, then the outcome.
ID is a transactional id, and PID is a producer id. The commands are::

    init ID [timeout=MS] [pid=N epoch=N]
    add ID PID EPOCH T-0,T-1 [version=2]      add partitions, or wait until this is possible
    verify ID PID EPOCH T-0,T-1               check that partitions are in the transaction
    commit ID PID EPOCH [version=2]
    abort ID PID EPOCH [version=2]
    markers                                   write the markers of all prepared transactions
    exhaust ID                                set the epoch of a producer to the last usable epoch
    level N                                   set the level of transaction.version
    wait MS                                   move the clock forward
    restart                                   load the shard from its log
    show                                      print the state of each transactional id
    list [longer=MS]                          list transactions, or only long transactions
    settings NAME=VALUE ...                   continue with a new shard that has these settings
"""

from collections.abc import Iterator

from transaction_model import TransactionModel

from moldau.coordinators.transactions.codec import TransactionRecord
from moldau.coordinators.transactions.settings import TransactionSettings
from moldau.coordinators.transactions.shard import TransactionFilter
from moldau.coordinators.transactions.transaction import EPOCH_MAX, ProducerIdentity, Transaction
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode, KafkaError


def run_script(text: str) -> str:
    """The script with the current output of the shard."""
    model = TransactionModel()
    parts = []
    for block in text.strip().split("\n\n"):
        command = block.partition("\n----")[0]
        lines = []
        for line in command.splitlines():
            if line.startswith("#"):
                continue
            if line.startswith("settings "):
                numbers = {key: int(value) for key, value in _options(line.split()[1:]).items()}
                model = TransactionModel(TransactionSettings(**numbers))
            else:
                lines.extend(_run(model, line.split()))
        parts.append("\n".join([command, "----", *lines]).rstrip())
    return "\n\n".join(parts) + "\n"


def _options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def _run(model: TransactionModel, words: list[str]) -> Iterator[str]:
    model.fresh.clear()
    answered = set(model.joins)
    try:
        yield from _command(model, words[0], words[1:])
    except KafkaError as error:
        yield f"refused {error.code.name}"
    if words[0] != "add":
        late = (error for token, error in model.joins.items() if token not in answered)
        yield from (f"waiting add: {error.code.name if error else 'none'}" for error in late)
    yield from (f"write {_record(record)}" for record in model.fresh)


def _command(model: TransactionModel, name: str, words: list[str]) -> Iterator[str]:
    match name:
        case "init":
            options = _options(words[1:])
            expected = (int(options["pid"]), int(options["epoch"])) if "pid" in options else None
            yield _answer(model.init(words[0], int(options.get("timeout", 60_000)), expected))
        case "add":
            version = int(_options(words[4:]).get("version", 0))
            if not model.add(words[0], _producer(words), _partitions(words[3]), version):
                yield "waits"
        case "verify":
            found = model.shard.verify(words[0], _producer(words), _partitions(words[3]))
            yield from (f"{topic}-{index} {code.name}" for (topic, index), code in found.items())
        case "commit" | "abort":
            version = int(_options(words[3:]).get("version", 0))
            answer = model.end(words[0], _producer(words), committed=name == "commit", version=version)
            yield _answer(answer)
        case "markers":
            for ended in model.shard.unfinished():
                yield f"to send: {ended.transactional_id} {_value(ended.transaction)}"
            model.complete()
        case "exhaust":
            found = model.shard.by_id[words[0]]
            model.shard.by_id[words[0]] = found._replace(producer_epoch=EPOCH_MAX - 1)
        case "wait":
            model.wait(int(words[0]))
        case "level":
            model.level = int(words[0])
        case "restart":
            model.restart()
        case "show":
            yield from (f"{key} {_value(value)}" for key, value in model.shard.by_id.items())
        case "list":
            wanted = TransactionFilter(longer_than_ms=int(_options(words).get("longer", -1)))
            listed = model.shard.list_transactions(tuple(model.shard.by_id), wanted, model.now_ms)
            yield from (f"{key} {value.state.value}" for key, value in listed)
        case _:
            raise ValueError(name)


def _producer(words: list[str]) -> ProducerIdentity:
    return ProducerIdentity(int(words[1]), int(words[2]))


def _partitions(text: str) -> list[TopicPartition]:
    pairs = (each.rpartition("-") for each in text.split(","))
    return [TopicPartition(topic, int(index)) for topic, _, index in pairs]


def _answer(answer: tuple[ErrorCode, int, int]) -> str:
    error, producer_id, epoch = answer
    return f"{error.name} {producer_id} {epoch}"


def _record(record: TransactionRecord) -> str:
    value = "tombstone" if record.value is None else _value(record.value)
    return f"{record.transactional_id} {value}"


def _value(value: Transaction) -> str:
    parts = [value.state.value, f"{value.producer_id}/{value.producer_epoch}"]
    if value.next_producer_id >= 0:
        parts.append(f"next={value.next_producer_id}")
    if value.previous_producer_id >= 0:
        parts.append(f"previous={value.previous_producer_id}")
    if value.partitions:
        parts.append(",".join(f"{topic}-{index}" for topic, index in sorted(value.partitions)))
    return " ".join(parts)
