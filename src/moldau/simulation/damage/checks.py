"""Checks a start on damaged files.

A start has three valid outcomes. The first outcome is that the start is refused, and the error names a
damaged file. The second outcome is that the start succeeds. In this case all missing data are reported, only
partitions with damaged files have lost data, and no object with existing records is deleted. The third
outcome is that the start succeeds without some metadata. In this case the health page names the damaged file
of the metadata, and requests for partitions get errors.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from moldau.protocol.partitions import TopicPartition
from moldau.simulation.damage.files import FileDamage
from moldau.simulation.world.disks.lost_files import DATA


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a node as clients see them, and the node's objects in the store."""

    topics: Mapping[str, int]
    """The number of partitions of each topic, without internal topics."""
    records: Mapping[TopicPartition, Sequence[tuple[int, bytes]]]
    unreadable: Mapping[TopicPartition, str] = field(default_factory=dict)
    """If a partition cannot be read to its end: the offset at which reading stops, and the error that the
    client got."""
    live_objects: Collection[str] = ()
    """Keys of objects that contain records of existing topics."""


@dataclass(frozen=True, slots=True)
class Reports:
    """Log lines since the node's start, and the health of the node."""

    log_lines: Sequence[str]
    health: str


def check_refusal(damages: Sequence[FileDamage], error: BaseException) -> list[str]:
    """Check a refused start. ``error`` is the exception that ended the start. Its text is the line that an
    operator gets."""
    text = str(error)
    if not any(_is_named(each, text) for each in damages):
        return [f"the refusal names none of the damaged files: {error!r}, after {_list(damages)}"]
    return []


def check_start(
    damages: Sequence[FileDamage],
    before: Contents,
    after: Contents,
    reports: Reports,
    objects: Collection[str],
    *,
    may_lose: Collection[str],
) -> list[str]:
    """Check a start that succeeded.

    ``objects`` are the keys in the store. ``may_lose`` are topics with records that exist only on this disk.
    """
    found = [
        f"topic {topic} has {after.topics.get(topic, 0)} of {count} partitions, after {_list(damages)}"
        for topic, count in before.topics.items()
        if after.topics.get(topic) != count
    ]
    found += [
        f"object {key} holds live records and is deleted, after {_list(damages)}"
        for key in before.live_objects
        if key not in objects
    ]
    for partition, records in before.records.items():
        damaged = [each for each in damages if each.folder == f"{DATA}/{_name(partition)}"]
        if partition in after.unreadable and _lacks_metadata(damages, reports.health):
            continue
        found += _check_partition(partition, records, after, reports, bool(damaged), may_lose, damages)
    return found


def _check_partition(
    partition: TopicPartition,
    before: Sequence[tuple[int, bytes]],
    after: Contents,
    reports: Reports,
    is_damaged: bool,
    may_lose: Collection[str],
    damages: Sequence[FileDamage],
) -> list[str]:
    name, because = _name(partition), f"after {_list(damages)}"
    records = after.records.get(partition, ())
    missing = sorted(set(before) - set(records))
    added = sorted(set(records) - set(before))
    error = after.unreadable.get(partition)
    found: list[str] = []
    if added:
        found.append(f"{name} has {len(added)} other records from offset {added[0][0]} on, {because}")
    if not missing and error is None:
        return found
    first = missing[0][0] if missing else None
    what = f"{name} has lost {len(missing)} of {len(before)} records from offset {first} on, {error=}"
    if not is_damaged:
        return [*found, f"{what}, and nothing of it was damaged, {because}"]
    if partition.topic not in may_lose:
        return [*found, f"{what}, and has them in the object store, {because}"]
    if error is not None:
        return found  # the loss is visible, because consumers stop at the damaged record
    if not any(name in line for line in reports.log_lines):
        found.append(f"{what}, and no log line names it, {because}")
    if name not in reports.health:
        found.append(f"{what}, and the health page does not name it: {reports.health}, {because}")
    return found


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _lacks_metadata(damages: Sequence[FileDamage], health: str) -> bool:
    """Whether the health page names a damaged file of an internal topic."""
    return any(each.folder.startswith(f"{DATA}/__") and each.path in health for each in damages)


def _is_named(damage: FileDamage, text: str) -> bool:
    folder, _, name = damage.path.rpartition("/")
    return folder in text and (name in text or folder != DATA)


def _list(damages: Sequence[FileDamage]) -> str:
    return "; ".join(map(str, damages)) or "no damage"
