"""A topic as a folder of Parquet files, each record in exactly one of them.

The folder ``_moldau`` holds numbered plans. A plan names the files of one round by their offsets, and is
created only where no plan has its number: that is the one compare-and-set. A round first finishes the last
plan, whoever made it, and only then makes the next. So a driver that dies anywhere, a repeated task or two
drivers at once lead to the same files. Plans are never removed: a driver that has slept must not find the
number free that it wants.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from moldau.client.errors import ToolError
from moldau.pipeline.planning import Bounds, OffsetRange, Source, pending, split
from moldau.pipeline.units import ParquetUnits, Written, file_name, publish, sync_folder
from moldau.runtime.entropy import SystemEntropy

RunUnits: TypeAlias = Callable[[Callable[[OffsetRange], Written], Sequence[OffsetRange]], list[Written]]
"""Calls a function for each unit, somewhere."""

PLANS_FOLDER: Final = "_moldau"
FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """One round: its units, and up to where each partition is exported after it."""

    number: int
    topic: str
    topic_id: str
    units: tuple[OffsetRange, ...]
    ends: Mapping[int, int]


class ParquetFolder:
    """The folder and its plans; local, or a file system that has hard links."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._plans = os.path.join(self.path, PLANS_FOLDER)

    def scratch(self, plan: Plan) -> str:
        return os.path.join(self._plans, f"scratch-{plan.number:010d}")

    def last_plan(self) -> Plan | None:
        """Raises :class:`ToolError` when it cannot be read."""
        try:
            names = sorted(name for name in os.listdir(self._plans) if name.startswith("plan-"))
        except FileNotFoundError:
            return None
        if not names:
            return None
        path = os.path.join(self._plans, names[-1])
        try:
            with open(path, encoding="utf-8") as file:
                return _plan_of_json(json.load(file))
        except (ValueError, KeyError, TypeError) as error:
            raise ToolError(f"{path} is not a plan that this version of Moldau can read") from error

    def create(self, plan: Plan) -> bool:
        """Make this the last plan; ``False`` when another driver was first."""
        os.makedirs(self._plans, exist_ok=True)
        sync_folder(self.path)
        draft = os.path.join(self._plans, f"draft-{SystemEntropy().uuid4()}")
        with open(draft, "x", encoding="utf-8") as file:
            json.dump(_json_of_plan(plan), file)
            file.flush()
            os.fsync(file.fileno())
        try:
            return publish(draft, os.path.join(self._plans, f"plan-{plan.number:010d}.json"))
        finally:
            os.unlink(draft)

    def missing(self, plan: Plan) -> list[OffsetRange]:
        return [unit for unit in plan.units if not os.path.exists(os.path.join(self.path, file_name(unit)))]


def export_parquet(
    source: Source,
    folder: ParquetFolder,
    find_bounds: Callable[[], Bounds],
    run: RunUnits,
    unit_records_max: int,
) -> list[Written]:
    """Bring the folder up to where the topic ends now; the files that were written on the way."""
    written: list[Written] = []
    while True:
        last = folder.last_plan()
        bounds = find_bounds()  # after the plan: the topic never ends before what is planned of it
        if last is not None:
            _check_same_topic(last, source.topic, bounds.topic_id, folder.path)
            written += _finish(last, source, folder, run)
        exported = {} if last is None else last.ends
        ranges = pending(source.topic, exported, bounds, may_lose=source.may_lose)
        if not ranges:
            return written
        plan = Plan(
            number=1 if last is None else last.number + 1,
            topic=source.topic,
            topic_id=bounds.topic_id,
            units=tuple(split(ranges, unit_records_max)),
            ends={**exported, **{partition: end for partition, _, end in ranges}},
        )
        if folder.create(plan):
            return written + _finish(plan, source, folder, run)


def _finish(plan: Plan, source: Source, folder: ParquetFolder, run: RunUnits) -> list[Written]:
    missing = folder.missing(plan)
    if not missing:
        return []
    source = replace(source, topic_id=plan.topic_id)
    return run(ParquetUnits(source, folder.path, folder.scratch(plan)), missing)


def _check_same_topic(plan: Plan, topic: str, topic_id: str, path: str) -> None:
    if plan.topic != topic:
        raise ToolError(f"{path} holds an export of topic {plan.topic}, not of {topic}")
    if plan.topic_id != topic_id:
        raise ToolError(f"{path} holds an export of an earlier topic {topic}: it was created again since")


def _json_of_plan(plan: Plan) -> dict[str, Any]:
    return {
        "version": FORMAT_VERSION,
        "number": plan.number,
        "topic": plan.topic,
        "topic_id": plan.topic_id,
        "units": [list(unit) for unit in plan.units],
        "ends": {str(partition): end for partition, end in plan.ends.items()},
    }


def _plan_of_json(found: Any) -> Plan:
    if found["version"] != FORMAT_VERSION:
        raise ValueError(f"version {found['version']}")
    return Plan(
        number=found["number"],
        topic=found["topic"],
        topic_id=found["topic_id"],
        units=tuple(OffsetRange(*unit) for unit in found["units"]),
        ends={int(partition): end for partition, end in found["ends"].items()},
    )
