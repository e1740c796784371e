"""Chooses the brokers for new chunks (KIP-1114). Pure."""

from collections.abc import Collection, Mapping

from moldau.client.errors import ToolError

__all__ = ["next_replicas"]


def next_replicas(
    count: int,
    racks: Mapping[int, str | None],
    load_bytes: Mapping[int, int],
    planned: Mapping[int, int] | None = None,
    avoid: Collection[int] = (),
) -> tuple[int, ...]:
    """The brokers for the next chunk of a partition. They are from as many racks as possible, and those with
    the fewest bytes come first.

    ``racks`` contains the active brokers. ``planned`` counts the chunks for which each broker was already
    chosen. This number matters more than bytes, so that several chunks are spread. Brokers in ``avoid`` are
    chosen last. Raises ``ToolError`` if there are too few brokers.
    """
    if count > len(racks):
        raise ToolError(f"{count} replicas need {count} active brokers, and there are {len(racks)}")
    chosen: list[int] = []
    used: list[str | None] = []
    while len(chosen) < count:
        best = min(
            (each for each in racks if each not in chosen),
            key=lambda each: (
                each in avoid,
                used.count(racks[each]),
                (planned or {}).get(each, 0),
                load_bytes.get(each, 0),
                each,
            ),
        )
        chosen.append(best)
        used.append(racks[best])
    return tuple(chosen)
