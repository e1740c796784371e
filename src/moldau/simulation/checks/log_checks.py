"""The checker of records. At the end of a scenario, every log is read completely, and the checker compares it
with the history.

- No acknowledged record is lost. Each acknowledged record has the offset that was acknowledged.
- No record occurs twice. (This is also true for a plain producer, because it does not retry.)
- A record that was refused permanently, or never sent, does not occur.
- Offsets are dense, and the records of a producer are in the order in which it sent them.
- A consumer reads without gaps and never goes back to an earlier offset. Each record that it has read is
  still at the same offset.

If the first records of a partition are deleted, these rules apply from its first remaining offset on. An
acknowledged deletion is never undone.
"""

from collections.abc import Iterator, Mapping, Sequence

from moldau.protocol.partitions import TopicPartition
from moldau.simulation.history import History, Outcome

FinalLog = Sequence[tuple[int, bytes]]
"""The offset and the value of every record of a log. The log is read from its first offset to its end, at the
end of a scenario."""


def check(
    history: History,
    final: Mapping[TopicPartition, FinalLog],
    first_offsets: Mapping[TopicPartition, int] | None = None,
) -> list[str]:
    """Return a sentence for every rule that the logs violate. The result is empty when no rule is violated.

    ``first_offsets`` has the first offsets of partitions whose first records may have been deleted.
    """
    shortened = first_offsets or {}
    found = list(history.violations)
    for partition in sorted(final):
        log = final[partition]
        first_offset = shortened.get(partition, 0)
        if first_offset < history.deletions.get(partition, 0):
            found.append(
                f"{_name(partition)}: begins at {first_offset}, and "
                f"{history.deletions[partition]} was acknowledged as its start"
            )
        found += _check_log(partition, log, first_offset)
        found += _check_productions(history, partition, log, first_offset)
        found += _check_order(history, partition, log)
        found += _check_consumers(history, partition, dict(log), first_offset)
    return found


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _check_log(partition: TopicPartition, log: FinalLog, first_offset: int) -> Iterator[str]:
    places: dict[bytes, int] = {}
    for expected, (offset, value) in enumerate(log, first_offset):
        if offset != expected:
            yield f"{_name(partition)}: offset {offset} follows {expected - 1}: offsets are not dense"
            return
        if value in places:
            yield f"{_name(partition)}: {value!r} is doubled, at {places[value]} and {offset}"
        places[value] = offset


def _check_productions(
    history: History, partition: TopicPartition, log: FinalLog, first_offset: int
) -> Iterator[str]:
    by_offset = dict(log)
    present = {value for _, value in log}
    sent: set[bytes] = set()
    for production in history.productions:
        if production.partition != partition:
            continue
        sent.update(production.values)
        for index, value in enumerate(production.values):
            offset = production.base_offset + index
            if production.outcome is Outcome.OK:
                if first_offset > 0 and (production.base_offset < 0 or offset < first_offset):
                    continue  # these records were deleted, or possibly deleted
                if value not in present:
                    yield f"{_name(partition)}: acknowledged {value!r} is lost (was at {offset})"
                elif production.base_offset >= 0 and by_offset.get(offset) != value:
                    yield (
                        f"{_name(partition)}: {value!r} was acknowledged at {offset}, "
                        f"where {by_offset.get(offset)!r} stands"
                    )
            elif production.outcome is Outcome.FAILED and value in present:
                yield f"{_name(partition)}: {value!r} was refused and is there"
    for offset, value in log:
        if value not in sent:
            yield f"{_name(partition)}: no producer sent {value!r}, which is at {offset}"


def _check_order(history: History, partition: TopicPartition, log: FinalLog) -> Iterator[str]:
    numbers: dict[bytes, tuple[str, int]] = {}
    for production in history.productions:
        if production.partition == partition:
            for index, value in enumerate(production.values):
                numbers[value] = (production.producer, production.first_number + index)
    last: dict[str, int] = {}
    for offset, value in log:
        if value in numbers:
            producer, number = numbers[value]
            if number < last.get(producer, -1):
                yield (
                    f"{_name(partition)}: {producer}'s record {number} at {offset} stands behind "
                    f"its record {last[producer]}"
                )
            last[producer] = number


def _check_consumers(
    history: History, partition: TopicPartition, by_offset: dict[int, bytes], first_offset: int
) -> Iterator[str]:
    positions: dict[str, int] = {}
    places: dict[bytes, int] = {}
    for seen in history.observations:
        if seen.partition != partition:
            continue
        expected = positions.get(seen.consumer, seen.offset)
        if seen.offset < expected or (seen.offset > expected and first_offset == 0):
            yield f"{_name(partition)}: {seen.consumer} read {seen.offset} where {expected} was next"
        positions[seen.consumer] = seen.offset + 1
        if places.setdefault(seen.value, seen.offset) != seen.offset:
            yield f"{_name(partition)}: {seen.value!r} was read at {places[seen.value]} and {seen.offset}"
        if seen.offset >= first_offset and by_offset.get(seen.offset) != seen.value:
            yield (
                f"{_name(partition)}: {seen.consumer} read {seen.value!r} at {seen.offset}, where "
                f"{by_offset.get(seen.offset)!r} stands in the end"
            )
