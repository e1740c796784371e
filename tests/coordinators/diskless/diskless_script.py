"""Runs golden scripts of the diskless shard: blocks of a command, ``----`` and the output.

The commands are ``create NAME COUNT``, ``drop NAME``,
``commit KEY [age=MS] [place=EPOCH.NUMBER.OPEN] BATCH...``, ``delete NAME-I OFFSET``,
``prune NAME-I FROM TO EPOCH``, ``close KEY...``, ``take-over KEY OWNER...``, ``wait MS``, ``expire``,
``reload`` (a new shard replays the log), ``show``, ``guard NAME-I PID.EPOCH``, and
``end NAME-I PID.EPOCH commit|abort [by=COORDINATOR-EPOCH] [version=N]``.

A batch is ``NAME-I+RECORDS``. These suffixes may follow:

* ``:PID.EPOCH.SEQUENCE``: the batch has a producer.
* ``!append``: the topic uses LogAppendTime.
* ``!txn``: the batch is transactional. ``!txn!guardN`` means that it has the guard N.
* ``!follows``: the batch comes after a batch that was dropped.
* ``!torn``: the number of records in the batch contradicts its offsets.
"""

import re
from collections.abc import Sequence
from uuid import UUID, uuid5

from moldau.coordinators.diskless.calls import (
    FOLLOWS_DROPPED,
    TRANSACTIONAL,
    BatchToCommit,
    CommitFileCall,
    CommitFileResult,
    CommitPlace,
    GuardToIssue,
    MarkerToWrite,
    OffsetToDelete,
    PartitionsToCreate,
    PruneCall,
)
from moldau.coordinators.diskless.codecs.codec import DisklessCodec
from moldau.coordinators.diskless.state.producers import opened
from moldau.coordinators.diskless.state.records import DisklessRecord, FileCommitted
from moldau.coordinators.diskless.state.shard import DisklessShard
from moldau.coordinators.effects import PLAIN, Effects, Reply, Token
from moldau.runtime import ErrorCode, KafkaError

BATCH = re.compile(r"(\w+)-(\d+)\+(\d+)(?::(\d+)\.(-?\d+)\.(\d+))?((?:!\w+)*)")

GUARD = re.compile(r"!guard(\d+)")


def topic_id(name: str) -> UUID:
    return uuid5(UUID(int=0), name)


class Script:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.shard = DisklessShard()
        self.codec = DisklessCodec()
        self.log: list[tuple[bytes | None, bytes | None]] = []
        self.guards = 0
        self.token = 0
        self.calls: dict[int, list[str]] = {}
        """The words of the commits that wait, by token."""

    def run(self, text: str) -> str:
        blocks = []
        for block in text.strip().split("\n\n"):
            command = block.split("\n----")[0]
            shown = [line for line in command.splitlines() if not line.startswith("#")]
            blocks.append(f"{command}\n----\n" + "\n".join(self.block(line) for line in shown))
        return "\n\n".join(blocks) + "\n"

    def block(self, line: str) -> str:
        name, *words = line.split()
        try:
            return str(getattr(self, "do_" + name.replace("-", "_"))(*words))
        except KafkaError as error:
            return f"{error.code.name}: {error.message}"

    def carry_out(self, effects: Effects[DisklessRecord]) -> Sequence[Reply]:
        for record in effects.records:
            self.log.append(self.codec.encode(record))
            self.shard.replay(len(self.log) - 1, record, PLAIN)
        return effects.replies

    def accept(self, effects: Effects[DisklessRecord]) -> object:
        return self.carry_out(effects)[-1].response

    def written(self, before: int) -> str:
        kinds = []
        for key, value in self.log[before:]:
            record = self.codec.decode(key, value)
            kinds.append(type(record).__name__)
            if isinstance(record, FileCommitted):
                kinds[-1] += f" of {len(record.sizes_bytes)}"
        return " [" + (", ".join(kinds) or "nothing") + "]"

    def do_create(self, name: str, count: str) -> str:
        before = len(self.log)
        asked = PartitionsToCreate(topic_id(name), name, range(int(count)))
        self.accept(self.shard.create_partitions([asked], Token(0)))
        return "ok" + self.written(before)

    def do_drop(self, name: str) -> str:
        before = len(self.log)
        self.accept(self.shard.delete_topics([topic_id(name)], Token(0)))
        return "ok" + self.written(before)

    def do_commit(self, key: str, *words: str) -> str:
        created, end, batches, place = self.now_ms, 0, [], None
        for word in words:
            if word.startswith("place="):
                place = CommitPlace(*map(int, word[6:].split(".")))
                continue
            if word.startswith("age="):
                created -= int(word[4:])
                continue
            found = BATCH.fullmatch(word)
            assert found is not None, word
            name, index, count, pid, epoch, sequence, flags = found.groups()
            records = int(count)
            batches.append(
                BatchToCommit(
                    topic_id(name), int(index), 0, end, 100, records - 1,
                    records + ("!torn" in flags), 5000, int("!append" in flags),
                    int(pid or -1), int(epoch or -1), int(sequence or -1), 0,
                    TRANSACTIONAL * ("!txn" in flags) + FOLLOWS_DROPPED * ("!follows" in flags),
                    int((GUARD.search(flags) or ("", 0))[1]),
                )
            )  # fmt: skip
            end += 100
        before = len(self.log)
        call = CommitFileCall(key, max(end, 1), created, 1, batches, place=place)
        self.token += 1
        self.calls[self.token] = [key, *(w for w in words if "=" not in w)]
        lines: list[str] = []
        refused = ""
        try:
            replies = self.carry_out(self.shard.commit_file(call, self.now_ms, Token(self.token)))
            lines += self.outcomes(replies)
        except KafkaError as error:
            refused = f"{error.code.name}: {error.message}"
            lines.append(refused)
        while self.shard.order.due() is not None:
            lines += self.outcomes(self.carry_out(self.shard.commit_due(self.now_ms, Token(0))))
        if len(self.log) == before and lines == [refused]:
            return refused
        return ("\n".join(lines) or "waits") + self.written(before)

    def outcomes(self, replies: Sequence[Reply]) -> list[str]:
        lines = []
        for token, response in replies:
            if not token:
                continue
            key, *words = self.calls.pop(token)
            prefix = "" if token == self.token else f"{key}: "
            if isinstance(response, KafkaError):
                lines.append(f"{prefix}{response.code.name}: {response.message}")
            else:
                assert isinstance(response, CommitFileResult)
                lines += [prefix + line for line in self.lines(words, response)]
        return lines

    def lines(self, words: Sequence[str], result: CommitFileResult) -> list[str]:
        lines = []
        for word, batch in zip(words, result.batches, strict=True):
            if batch.error is not ErrorCode.none:
                lines.append(f"{word} -> {batch.error.name}")
                continue
            at = f" at {batch.log_append_time_ms}" if batch.log_append_time_ms >= 0 else ""
            again = " (duplicate)" if batch.is_duplicate else ""
            lines.append(f"{word} -> {batch.base_offset}{at}{again}")
        return lines

    def do_guard(self, partition: str, producer: str) -> str:
        name, _, index = partition.partition("-")
        producer_id, epoch = map(int, producer.split("."))
        self.guards += 1
        found = self.shard.guard(GuardToIssue(topic_id(name), int(index), producer_id, epoch), self.guards)
        return f"guard {found.guard}" if found.error is ErrorCode.none else found.error.name

    def do_end(self, partition: str, producer: str, outcome: str, *words: str) -> str:
        name, _, index = partition.partition("-")
        producer_id, epoch = map(int, producer.split("."))
        others = dict(word.split("=") for word in words)
        marker = MarkerToWrite(
            topic_id(name), int(index), producer_id, epoch, int(others.get("by", 0)), outcome == "commit",
            int(others.get("version", 0)),
        )  # fmt: skip
        before = len(self.log)
        ended = self.accept(self.shard.end_transactions([marker], self.now_ms, Token(0)))
        assert isinstance(ended, list)
        return ended[0].error.name + self.written(before)

    def do_delete(self, partition: str, offset: str) -> str:
        name, _, index = partition.partition("-")
        before = len(self.log)
        asked = OffsetToDelete(topic_id(name), int(index), int(offset))
        deleted = self.accept(self.shard.delete_records([asked], Token(0)))
        assert isinstance(deleted, list)
        return f"{deleted[0].error.name} low watermark {deleted[0].low_watermark}" + self.written(before)

    def do_prune(self, partition: str, start: str, end: str, epoch: str) -> str:
        name, _, index = partition.partition("-")
        before = len(self.log)
        call = PruneCall(topic_id(name), int(index), int(start), int(end), int(epoch))
        pruned = self.accept(self.shard.prune(call, Token(0)))
        return f"{pruned.error.name} WAL from {pruned.wal_start_offset}" + self.written(before)  # type: ignore[attr-defined]

    def do_close(self, *keys: str) -> str:
        before = len(self.log)
        closed = self.accept(self.shard.close_files(keys, (), self.now_ms, Token(0)))
        assert isinstance(closed, list)
        return "\n".join(f"{found.object_key} {found.error.name}" for found in closed) + self.written(before)

    def do_take_over(self, key: str, *owners: str) -> str:
        before = len(self.log)
        remaining = [int(owner) for owner in owners]
        self.accept(self.shard.take_over(key, remaining, 1, self.now_ms, self.now_ms, Token(0)))
        return "ok" + self.written(before)

    def do_expire(self) -> str:
        before = len(self.log)
        replies = [*self.carry_out(self.shard.refuse_outdated(self.now_ms, Token(0)))[:-1]]
        replies += self.carry_out(self.shard.expire(Token(0), self.now_ms))
        return "\n".join([*self.outcomes(replies), "ok"]) + self.written(before)

    def do_wait(self, milliseconds: str) -> str:
        self.now_ms += int(milliseconds)
        return f"now {self.now_ms}"

    def do_reload(self) -> str:
        self.shard = DisklessShard()
        for offset, (key, value) in enumerate(self.log):
            record = self.codec.decode(key, value)
            assert record is not None
            self.shard.replay(offset, record, PLAIN)
        return f"{len(self.log)} records"

    def do_show(self) -> str:
        lines = []
        for found in sorted(self.shard.partitions, key=lambda found: (found.name, found.id[1])):
            offsets = f"log {found.log_start} wal {found.wal_start} next {found.next}"
            stable = "" if found.transactions is None else f" stable {found.last_stable}"
            lines.append(f"{found.name}-{found.id.partition} {offsets}{stable}")
            for producer_id, packed in found.producers.items():
                epoch, _, entries = opened(packed)
                window = " ".join(f"{first}..{last}@{base}" for first, last, base, _ in entries)
                lines.append(f"  producer {producer_id}.{epoch}: {window}")
        return "\n".join(lines) or "nothing"
