"""Chooses the brokers for new chunks (KIP-1114). Pure."""

from collections.abc import Callable, Collection, Mapping

from moldau.runtime.errors import ErrorCode, KafkaError

__all__ = ["led_max", "next_replicas", "rolled_replicas"]


def next_replicas(
    count: int,
    racks: Mapping[int, str | None],
    load_bytes: Mapping[int, int],
    planned: Mapping[int, int] | None = None,
) -> tuple[int, ...]:
    """The brokers for the next chunk of a partition. They are from as many racks as possible, and brokers
    with the fewest bytes come first.

    ``racks`` contains the active brokers. ``planned`` counts the chunks for which each broker was already
    chosen. This number has priority over the bytes, so that several new chunks are spread over the brokers.
    Raises ``KafkaError(invalid_replication_factor)`` if there are too few brokers.
    """
    plans = planned or {}
    return _spread(count, racks, lambda each: (plans.get(each, 0), load_bytes.get(each, 0)))


def rolled_replicas(
    count: int,
    racks: Mapping[int, str | None],
    load_bytes: Mapping[int, int],
    led: Mapping[int, int],
    partition_count: int,
) -> tuple[int, ...]:
    """The brokers for the next chunk of a partition whose chunks are created automatically.

    ``led`` counts the other partitions of the topic that each broker leads. A broker that already leads half
    of the topic's partitions is not chosen as the leader, if another broker can lead. Without this rule, a
    new broker without records would become the leader of all partitions of the topic, and get all new
    records. Raises ``KafkaError(invalid_replication_factor)`` if there are too few brokers.
    """
    full = {each for each in racks if led.get(each, 0) >= led_max(partition_count)}

    def load(broker_id: int) -> tuple[int, int]:
        return 0, load_bytes.get(broker_id, 0)

    leader = min(racks, key=lambda each: (each in full, *load(each), each), default=-1)
    return _spread(count, racks, load, [leader] if racks else [])


def led_max(partition_count: int) -> int:
    """The maximum number of a topic's partitions that the automatic creation of chunks lets one broker
    lead."""
    return max(1, (partition_count + 1) // 2)


def _spread(
    count: int,
    racks: Mapping[int, str | None],
    load: Callable[[int], tuple[int, int]],
    first: Collection[int] = (),
) -> tuple[int, ...]:
    if count > len(racks):
        reason = f"{count} replicas need {count} active brokers, and there are {len(racks)}"
        raise KafkaError(ErrorCode.invalid_replication_factor, reason)
    chosen = list(first)
    used = [racks[each] for each in chosen]
    while len(chosen) < count:
        best = min(
            (each for each in racks if each not in chosen),
            key=lambda each: (used.count(racks[each]), *load(each), each),
        )
        chosen.append(best)
        used.append(racks[best])
    return tuple(chosen)
