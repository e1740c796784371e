"""Export of a topic to an Iceberg table that contains each record once.

Tasks write files without references. One commit then adds the files to the table. The same commit also writes
the exported offsets of each partition into the table's *properties*; the catalog applies it by one
compare-and-set. Properties are used because snapshots expire. If a driver crashes before its commit, its
files stay unreferenced. If it crashes after its commit, the next driver finds the commit in the properties.
If two drivers run concurrently, one of them commits and the other is refused.

Records that cannot be decoded (dead letters) are in a separate table. When a round is committed, a property
lists the round's files of dead letters. A second commit adds these files to the table of dead letters, unless
that table already contains the round. Therefore the next driver completes the work of a crashed driver. In a
replay, the first commit adds the records that can be decoded now. It also names the files that replace the
dead letters.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    ResolveError,
    ValidationError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table, Transaction
from pyiceberg.typedef import Record

from moldau.client.errors import ToolError
from moldau.pipeline.export.layout import layout_of, stored_columns
from moldau.pipeline.export.progress import Covered, ExportedSpan, parse_offsets, render_offsets
from moldau.pipeline.export.replaying import ReplayAttempts
from moldau.pipeline.export.rounds import ExportRequest, RoundOutcome
from moldau.pipeline.export.targets import TableFolder
from moldau.pipeline.export.units import AttemptUnits, Files, WrittenUnit
from moldau.pipeline.values.formats import DEAD_LETTER_SCHEMA, ValueFormat, render_format

NAMESPACE: Final = "moldau"
DEAD_LETTERS_SUFFIX: Final = "_dead_letters"
STARTS_PROPERTY: Final = "moldau.export.starts"
OFFSETS_PROPERTY: Final = "moldau.export.offsets"
RANGES_PROPERTY: Final = "moldau.export.ranges"
BATCH_PROPERTY: Final = "moldau.export.batch-id"
TOPIC_PROPERTY: Final = "moldau.export.topic"
TOPIC_ID_PROPERTY: Final = "moldau.export.topic-id"
VALUES_PROPERTY: Final = "moldau.export.values"
DEAD_LETTERS_PROPERTY: Final = "moldau.export.dead-letters"
RETRIES_PROPERTY: Final = "commit.retry.num-retries"
METRICS_PROPERTY: Final = "write.metadata.metrics.column."


def table_name(topic: str) -> tuple[str, str]:
    """Namespace and name of a topic's table. Dots in a topic name are replaced, because a catalog would read
    a dot as the end of a namespace."""
    return NAMESPACE, topic.replace(".", "_")


def dead_letters_name(topic: str) -> tuple[str, str]:
    namespace, name = table_name(topic)
    return namespace, name + DEAD_LETTERS_SUFFIX


def export_iceberg(request: ExportRequest, catalog: Catalog) -> RoundOutcome:
    """Extend the table to the current end of the topic. Returns the added files.

    Raises :class:`ToolError` when another driver has committed in the meantime; the export can then be run
    again.
    """
    topic = request.source.topic
    found = _find_table(catalog, table_name(topic), topic)
    if found is not None:
        _check_not_set_back(found)
        _finish_dead_letters(catalog, found, topic)
    bounds = request.find_bounds()  # read after the table, so that no end offset is too old
    if found is not None:
        _check_same_topic(found, topic, bounds.topic_id)
    covered: Covered = {} if found is None else _covered(found)
    ranges, after = request.next_round(covered, bounds)
    units = request.units(ranges)
    old = None if found is None else _format(found)
    values = request.format_of(old, units, ".".join(table_name(topic)), promote=True)
    if found is None:
        _check_no_older_dead_letters(catalog, topic)
    table = found or _new_table(catalog, topic, values, bounds.topic_id)
    dead_letters = ".".join(dead_letters_name(topic))
    if not ranges:
        if after != covered and (covered or request.find_starts is not None):
            _move_on(table, after)
            covered = after
        return RoundOutcome([], covered, dead_letters)
    if old is not None and old != values.of_table:
        _add_columns(table, values)
    folders = _folder(table), _dead_letters_folder(table)
    layout = layout_of(table.metadata, values.schema, _label(table))
    written = _written(request.run(AttemptUnits(request.source, *folders, values, layout), units))
    filled = [file for file in written if file.records or file.dead]  # some units have no record
    _commit(table, written, {**_progress(after), RANGES_PROPERTY: json.dumps(units)}, replaces=False)
    _finish_dead_letters(catalog, table, topic)
    return RoundOutcome(filled, after, dead_letters)


def replay_iceberg(request: ExportRequest, catalog: Catalog) -> RoundOutcome:
    """Decode the dead letters again, and move the records that can be decoded now to the table."""
    topic = request.source.topic
    table = _find_table(catalog, table_name(topic), topic)
    if table is None:
        raise ToolError(f"there is no table {'.'.join(table_name(topic))}")
    _check_same_topic(table, topic, request.find_bounds().topic_id)
    _check_not_set_back(table)
    _finish_dead_letters(catalog, table, topic)
    outcome = RoundOutcome([], _covered(table), ".".join(dead_letters_name(topic)))
    dead = _find_table(catalog, dead_letters_name(topic), topic)
    files = [] if dead is None else _files_of(dead)
    locations = [file.file_path for file in files]
    outcome = outcome._replace(dead_letters_left=sum(file.record_count for file in files))
    old = _format(table)
    values = request.format_of(old, [], ".".join(table_name(topic)), promote=True)
    if not locations:
        return outcome
    if old != values.of_table:
        _add_columns(table, values)
    layout = layout_of(table.metadata, values.schema, _label(table))
    run = ReplayAttempts(_folder(table), _dead_letters_folder(table), values, layout)
    written = _written(request.run(run, locations))
    recovered = [file for file in written if file.records]
    if not recovered:
        return outcome
    _commit(table, written, _progress(outcome.covered), replaces=True)
    _finish_dead_letters(catalog, table, topic)
    left = sum(file.dead.records for file in written if file.dead)
    return outcome._replace(written=recovered, dead_letters_left=left)


def _files_of(dead: Table) -> list[DataFile]:
    """The table's files. Raises :class:`ToolError` if rows were deleted but the files still contain them."""
    found = list(dead.scan().plan_files())
    if any(task.delete_files for task in found):
        raise ToolError(
            f"table {_label(dead)} has rows that another tool deleted by files of deletes (merge-on-read),"
            " and a replay would bring them back: rewrite its data files first"
        )
    return [task.file for task in found]


def _written(found: Sequence[Files]) -> list[WrittenUnit]:
    return [one for files in found for one in files.written]


def _find_table(catalog: Catalog, name: tuple[str, str], topic: str) -> Table | None:
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        return None
    properties = table.properties
    is_dead_letters = properties.get(DEAD_LETTERS_PROPERTY) == "table"
    if properties.get(TOPIC_PROPERTY) != topic or is_dead_letters != (name == dead_letters_name(topic)):
        raise ToolError(f"table {'.'.join(name)} is no export of topic {topic}")
    if properties.get(RETRIES_PROPERTY) != "0":
        raise ToolError(f"table {'.'.join(name)}: set {RETRIES_PROPERTY} to 0, or records may come twice")
    return table


def _check_no_older_dead_letters(catalog: Catalog, topic: str) -> None:
    """Refuse an older table of dead letters. A new table numbers its rounds from the beginning. The older
    table of dead letters already contains rounds with these numbers, so it would skip the new rounds."""
    name = dead_letters_name(topic)
    if catalog.table_exists(name) and not catalog.table_exists(table_name(topic)):
        raise ToolError(
            f"table {'.'.join(name)} has dead letters of a table {'.'.join(table_name(topic))} that is gone:"
            " drop it, too, or give it another name"
        )


def _check_same_topic(table: Table, topic: str, topic_id: str) -> None:
    if table.properties[TOPIC_ID_PROPERTY] != topic_id:
        raise ToolError(
            f"table {_label(table)} is an export of an earlier topic {topic}:"
            " the topic was deleted and created again"
        )


def _check_not_set_back(table: Table) -> None:
    """Refuse a table that another tool has reset to an earlier snapshot. Its properties still say that it
    contains the records of the later rounds, so these records would not be exported again."""
    last = table.properties[BATCH_PROPERTY]
    snapshot = table.current_snapshot()
    while snapshot is not None:
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        if BATCH_PROPERTY in summary:
            break
        if snapshot.parent_snapshot_id is None:
            return
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id)
        if snapshot is None:  # the snapshot has expired
            return
    there = "0" if snapshot is None else summary[BATCH_PROPERTY]
    if there != last:
        raise ToolError(
            f"table {_label(table)} was set back to round {there} of its export, and records of rounds up to"
            f" {last} are missing: set it to a snapshot of round {last}, or drop it with its dead letters and"
            " export again"
        )


def _label(table: Table) -> str:
    return ".".join(table.name()[-2:])


def _covered(table: Table) -> Covered:
    ends = parse_offsets(table.properties[OFFSETS_PROPERTY])
    starts = parse_offsets(table.properties[STARTS_PROPERTY])
    return {partition: ExportedSpan(starts[partition], end) for partition, end in ends.items()}


def _progress(covered: Covered) -> dict[str, str]:
    return {
        STARTS_PROPERTY: render_offsets({partition: span.start for partition, span in covered.items()}),
        OFFSETS_PROPERTY: render_offsets({partition: span.end for partition, span in covered.items()}),
    }


def _format(table: Table) -> ValueFormat:
    return ValueFormat.of_json(json.loads(table.properties[VALUES_PROPERTY]))


def _new_table(catalog: Catalog, topic: str, values: ValueFormat, topic_id: str) -> Table:
    properties = {
        **_progress({}),
        TOPIC_PROPERTY: topic,
        TOPIC_ID_PROPERTY: topic_id,
        BATCH_PROPERTY: "0",
        VALUES_PROPERTY: render_format(values),
        # pyiceberg must not retry a refused commit. A retry would add this driver's files after the commit of
        # another driver.
        RETRIES_PROPERTY: "0",
    }
    table = _create(catalog, table_name(topic), values.schema, properties)
    if any(table.properties.get(name) != value for name, value in properties.items()):
        raise _another_driver(table)  # another driver has created the table, and may have added records to it
    return table


def _create(catalog: Catalog, name: tuple[str, str], schema: pa.Schema, properties: dict[str, str]) -> Table:
    with contextlib.suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(NAMESPACE)
    metrics = {f"{METRICS_PROPERTY}{column}": "none" for column in _without_statistics(schema)}
    return catalog.create_table_if_not_exists(name, schema=schema, properties={**metrics, **properties})


def _without_statistics(schema: pa.Schema) -> list[str]:
    """Columns for which range statistics are useless."""
    raw = "value" in schema.names and schema.field("value").type == pa.binary()
    return ["headers.element.key", "headers.element.value", *(["value"] if raw else [])]


def _folder(table: Table) -> TableFolder:
    return TableFolder(f"{table.location().rstrip('/')}/data", dict(table.io.properties))


def _dead_letters_folder(table: Table) -> TableFolder:
    return TableFolder(f"{table.location().rstrip('/')}{DEAD_LETTERS_SUFFIX}/data", dict(table.io.properties))


def _move_on(table: Table, covered: Covered) -> None:
    """Store the exported offsets in a round without records. For example, this stores the offset at which the
    table starts, or the offset after deleted records."""
    progress = _progress(covered)
    with _refusable(table), table.transaction() as change:
        change.set_properties(progress)
        _append_nothing(change, progress)


def _data_file(table: Table, file: WrittenUnit) -> DataFile:
    """The entry of a file in the table's metadata, with the file's statistics."""
    metadata = table.metadata
    schema = metadata.schema()
    path = _uri(file.path)
    found = table.io.new_input(path)
    with found.open() as stream:
        footer = pq.read_metadata(stream)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*file.partition),
        file_size_in_bytes=len(found),
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _append_nothing(change: Transaction, summary: dict[str, str]) -> None:
    """Add an empty snapshot, because only a snapshot excludes another driver. A commit of only properties
    would overwrite the properties of the other driver."""
    with change.update_snapshot(snapshot_properties=summary).fast_append():
        pass


def _add_columns(table: Table, values: ValueFormat) -> None:
    """Add columns in a separate commit. If the round fails after this commit, the new or wider columns stay,
    which is not a problem.

    This commit does not exclude a concurrent driver that adds no columns. If the other driver has committed
    its round, ``table`` has the state after that round. This function then raises :class:`ToolError`, because
    this driver must not apply its own round on top of that state.
    """
    batch_id, progress = table.properties[BATCH_PROPERTY], _covered(table)
    with _refusable(table), _followed(table), table.transaction() as change:
        with change.update_schema() as schema:
            columns = stored_columns(table.metadata, values.schema, _format(table).schema, _label(table))
            schema.union_by_name(columns)
        change.set_properties({VALUES_PROPERTY: render_format(values)})
    if (table.properties[BATCH_PROPERTY], _covered(table)) != (batch_id, progress):
        raise _another_driver(table)


def _commit(table: Table, written: list[WrittenUnit], progress: dict[str, str], *, replaces: bool) -> None:
    batch_id = str(int(table.properties[BATCH_PROPERTY]) + 1)
    dead = {
        "batch_id": batch_id,
        "files": [file.dead.path for file in written if file.dead],
        "replaces": replaces,
    }
    files = [file for file in written if file.records]
    summary = {**progress, BATCH_PROPERTY: batch_id}
    stored = {name: value for name, value in summary.items() if name != RANGES_PROPERTY}
    with _refusable(table), _followed(table), table.transaction() as change:
        change.set_properties({**stored, DEAD_LETTERS_PROPERTY: json.dumps(dead)})
        with change.update_snapshot(snapshot_properties=summary).fast_append() as append:
            for file in files:
                append.append_data_file(_data_file(table, file))


def _uri(path: str) -> str:
    return f"file://{path}" if path.startswith("/") else path


@contextlib.contextmanager
def _refusable(table: Table) -> Iterator[None]:
    try:
        yield
    except CommitFailedException as error:
        raise _another_driver(table) from error


@contextlib.contextmanager
def _followed(table: Table) -> Iterator[None]:
    """Convert pyiceberg's error about files or columns that do not match the table to a single line."""
    try:
        yield
    except (ValueError, KeyError, ResolveError, ValidationError) as error:
        reason = " ".join(str(error).split())
        raise ToolError(
            f"table {_label(table)} has columns or partitions that the export cannot follow; another tool has"
            f" changed them, and can change them back: {reason}"
        ) from error


def _another_driver(table: Table) -> ToolError:
    return ToolError(f"another driver has committed to table {_label(table)} meanwhile: run the export again")


def _finish_dead_letters(catalog: Catalog, table: Table, topic: str) -> None:
    """Add the dead letters of the last commit to their table, unless the table already has them."""
    decided: Any = json.loads(table.properties.get(DEAD_LETTERS_PROPERTY, "{}"))
    if not decided or not (decided["files"] or decided["replaces"]):
        return
    name = dead_letters_name(topic)
    dead = _find_table(catalog, name, topic)
    if dead is None:
        properties = {
            TOPIC_PROPERTY: topic,
            BATCH_PROPERTY: "0",
            DEAD_LETTERS_PROPERTY: "table",
            RETRIES_PROPERTY: "0",
        }
        dead = _create(catalog, name, DEAD_LETTER_SCHEMA, properties)
    if int(dead.properties[BATCH_PROPERTY]) >= int(decided["batch_id"]):
        return
    progress = {BATCH_PROPERTY: decided["batch_id"]}
    with _refusable(dead), _followed(dead), dead.transaction() as change:
        change.set_properties(progress)
        if decided["replaces"]:
            change.delete(AlwaysTrue(), snapshot_properties=progress)
        if decided["files"]:
            change.add_files(
                [_uri(path) for path in decided["files"]],
                snapshot_properties=progress,
                check_duplicate_files=False,
            )
