"""Export of a topic to a folder of Parquet files. Each record is in exactly one file.

The folder ``_moldau`` contains numbered plans. A plan names the files of one round by their offsets and
describes the decoding of values. A plan is created only if no other plan has its number. This creation is the
only compare-and-set. A round first completes the last plan, even if another driver created that plan, and
then creates the next plan. Therefore a crashed driver, a repeated task and two concurrent drivers all produce
the same files. Plans are never removed, so a delayed driver cannot use an old number again.

Records that cannot be decoded are in ``_dead_letters/<generation>``. A replay is a plan, too. It moves the
records that can be decoded now to the table, and the other dead letters to the next generation. Therefore a
delayed task can only write to a generation that is no longer read.
"""

import json
import os
import shutil
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow.parquet as pq

from moldau.client.errors import ToolError
from moldau.pipeline.export.progress import Covered, ExportedSpan
from moldau.pipeline.export.replaying import ReplayNames
from moldau.pipeline.export.rounds import ExportRequest, RoundOutcome
from moldau.pipeline.export.targets import foreign_content, make_folder, publish
from moldau.pipeline.export.units import ParquetUnits, WrittenUnit, file_name
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.values.formats import RAW, ValueFormat
from moldau.runtime.entropy import SystemEntropy

PLANS_FOLDER: Final = "_moldau"
DEAD_LETTERS_FOLDER: Final = "_dead_letters"
FORMAT_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class ParquetRound:
    """The plan of one round: its units, and the exported offsets after it."""

    number: int
    topic: str
    topic_id: str
    units: tuple[OffsetRange, ...]
    covered: Covered
    values: ValueFormat = RAW
    generation: int = 0
    """Generation of the dead letters after this round: the number of the last replay."""
    replayed: tuple[str, ...] = ()
    """Files of dead letters of the previous generation that this round decodes again."""
    replays_generation: int = 0


class ParquetFolder:
    """The folder and its plans. The folder must be on a file system with hard links, for example a local file
    system."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._plans = os.path.join(self.path, PLANS_FOLDER)

    def scratch(self, plan: ParquetRound) -> str:
        return os.path.join(self._plans, f"scratch-{plan.number:010d}")

    @property
    def dead_letters(self) -> str:
        return os.path.join(self.path, DEAD_LETTERS_FOLDER)

    def generation(self, number: int) -> str:
        return os.path.join(self.dead_letters, f"generation-{number:010d}")

    def last_plan(self) -> ParquetRound | None:
        """The plan with the highest number; ``None`` if there is no plan. Raises :class:`ToolError` when the
        plan cannot be read."""
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

    def create(self, plan: ParquetRound) -> bool:
        """Create the next plan. Returns ``False`` when another driver has already created it."""
        make_folder(self._plans)
        draft = os.path.join(self._plans, f"draft-{SystemEntropy().uuid4()}")
        with open(draft, "x", encoding="utf-8") as file:
            json.dump(_json_of_plan(plan), file)
            file.flush()
            os.fsync(file.fileno())
        try:
            return publish(draft, os.path.join(self._plans, f"plan-{plan.number:010d}.json"))
        finally:
            os.unlink(draft)

    def missing(self, plan: ParquetRound) -> list[OffsetRange]:
        return [unit for unit in plan.units if not os.path.exists(os.path.join(self.path, file_name(unit)))]

    def dead_files(self, generation: int, *, with_records: bool = False) -> list[str]:
        """Names of the files of dead letters in a generation. With ``with_records``, empty files are left
        out."""
        folder = self.generation(generation)
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".parquet"))
        except FileNotFoundError:
            return []
        if not with_records:
            return names
        return [name for name in names if pq.read_metadata(os.path.join(folder, name)).num_rows]

    def count_dead(self, generation: int) -> int:
        """Number of dead letters in a generation."""
        folder = self.generation(generation)
        return sum(
            pq.read_metadata(os.path.join(folder, name)).num_rows for name in self.dead_files(generation)
        )

    def forget_before(self, generation: int) -> None:
        """Remove the generations of dead letters before ``generation``, which were already decoded again."""
        for name in os.listdir(self.dead_letters) if os.path.isdir(self.dead_letters) else []:
            if name.startswith("generation-") and name < os.path.basename(self.generation(generation)):
                shutil.rmtree(os.path.join(self.dead_letters, name), ignore_errors=True)


def check_no_parquet(folder: str) -> None:
    """Raises :class:`ToolError` if a local folder (a path or a URI) already contains an export of plain
    Parquet files."""
    path = folder.removeprefix("file://")
    if "://" in path or not path:
        return
    last = ParquetFolder(path).last_plan()
    if last is not None:
        raise ToolError(
            f"{path} holds an export of topic {last.topic} as plain Parquet:"
            " --format parquet, or another folder"
        )


def check_no_foreign(folder: ParquetFolder) -> None:
    """Raises :class:`ToolError` if a folder without an export contains files of another program. Readers
    could not distinguish these files from the export's files."""
    found = foreign_content(folder.path)  # list the files before the plans are read
    if found is not None and folder.last_plan() is None:
        raise ToolError(f"{folder.path} holds {found}: take another folder")


def export_parquet(request: ExportRequest, folder: ParquetFolder) -> RoundOutcome:
    """Extend the folder to the current end of the topic. Returns the written files."""
    written: list[WrittenUnit] = []
    topic = request.source.topic
    while True:
        last = folder.last_plan()
        bounds = request.find_bounds()  # read after the plan, so no end offset is before the plan's end
        if last is not None:
            _check_same_topic(last, topic, bounds.topic_id, folder.path)
            written += _finish(last, request, folder)
        covered = {} if last is None else last.covered
        ranges, after = request.next_round(covered, bounds)
        units = request.units(ranges)
        values = request.format_of(None if last is None else last.values, units, folder.path)
        is_begun = bool(covered) or request.find_starts is not None
        if not ranges and (not after or after == covered or not is_begun):
            return RoundOutcome(written, covered, folder.dead_letters)
        plan = ParquetRound(
            number=1 if last is None else last.number + 1,
            topic=topic,
            topic_id=bounds.topic_id,
            units=tuple(units),
            covered=after,
            values=values,
            generation=0 if last is None else last.generation,
        )
        if folder.create(plan):
            return RoundOutcome(written + _finish(plan, request, folder), after, folder.dead_letters)


def replay_parquet(request: ExportRequest, folder: ParquetFolder) -> RoundOutcome:
    """Decode the dead letters again, and move the records that can be decoded now to the table."""
    written: list[WrittenUnit] = []
    while True:
        last = folder.last_plan()
        if last is None:
            raise ToolError(f"{folder.path} holds no export")
        _check_same_topic(last, request.source.topic, request.find_bounds().topic_id, folder.path)
        written += _finish(last, request, folder)
        names = folder.dead_files(last.generation, with_records=True)
        if not names:
            return RoundOutcome(written, last.covered, folder.dead_letters)
        number = last.number + 1
        plan = replace(
            last,
            number=number,
            units=(),
            values=request.format_of(last.values, [], folder.path),
            generation=number,
            replayed=tuple(names),
            replays_generation=last.generation,
        )
        if folder.create(plan):
            written += _finish(plan, request, folder)
            return RoundOutcome(written, last.covered, folder.dead_letters, folder.count_dead(number))


def _finish(plan: ParquetRound, request: ExportRequest, folder: ParquetFolder) -> list[WrittenUnit]:
    make_folder(folder.generation(plan.generation))
    written: list[WrittenUnit] = []
    missing = folder.missing(plan)
    if missing:
        units = ParquetUnits(
            replace(request.source, topic_id=plan.topic_id),
            folder.path,
            folder.scratch(plan),
            folder.generation(plan.generation),
            plan.values,
        )
        written += request.run(units, missing)
    there = set(folder.dead_files(plan.generation))
    to_replay = [name for name in plan.replayed if name not in there]
    if to_replay:
        replays = ReplayNames(
            folder.path,
            folder.scratch(plan),
            folder.generation(plan.replays_generation),
            folder.generation(plan.generation),
            plan.number,
            plan.values,
        )
        written += request.run(replays, to_replay)
    if plan.replayed:
        folder.forget_before(plan.generation)
    return written


def _check_same_topic(plan: ParquetRound, topic: str, topic_id: str, path: str) -> None:
    if plan.topic != topic:
        raise ToolError(f"{path} holds an export of topic {plan.topic}, not of {topic}")
    if plan.topic_id != topic_id:
        raise ToolError(
            f"{path} holds an export of an earlier topic {topic}: the topic was deleted and created again"
        )


def _json_of_plan(plan: ParquetRound) -> dict[str, Any]:
    return {
        "version": FORMAT_VERSION,
        "number": plan.number,
        "topic": plan.topic,
        "topic_id": plan.topic_id,
        "units": [list(unit) for unit in plan.units],
        "covered": {str(partition): list(span) for partition, span in plan.covered.items()},
        "values": plan.values.to_json(),
        "generation": plan.generation,
        "replayed": list(plan.replayed),
        "replays_generation": plan.replays_generation,
    }


def _plan_of_json(found: Any) -> ParquetRound:
    if found["version"] != FORMAT_VERSION:
        raise ValueError(f"version {found['version']}")
    return ParquetRound(
        number=found["number"],
        topic=found["topic"],
        topic_id=found["topic_id"],
        units=tuple(OffsetRange(*unit) for unit in found["units"]),
        covered={int(partition): ExportedSpan(*span) for partition, span in found["covered"].items()},
        values=ValueFormat.of_json(found["values"]),
        generation=found["generation"],
        replayed=tuple(found["replayed"]),
        replays_generation=found["replays_generation"],
    )
