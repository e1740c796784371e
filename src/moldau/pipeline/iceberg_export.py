"""A topic as an Iceberg table, each record in it once.

Tasks write files that nothing refers to. One commit then adds them to the table and, in the same
compare-and-set of the catalog, writes into the table's *properties* up to where each partition is exported:
snapshots expire, properties do not. A driver that dies before its commit leaves unreferenced files; one that
dies after it is found to have committed. Of two drivers at once one commits and the other is refused.
"""

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, Final

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.table import Table

from moldau.client.errors import ToolError
from moldau.pipeline.decoding import SCHEMA
from moldau.pipeline.parquet_export import RunUnits
from moldau.pipeline.planning import Bounds, Source, pending, split
from moldau.pipeline.units import AttemptUnits, Written

NAMESPACE: Final = "moldau"
OFFSETS_PROPERTY: Final = "moldau.export.offsets"
BATCH_PROPERTY: Final = "moldau.export.batch-id"
TOPIC_PROPERTY: Final = "moldau.export.topic"
TOPIC_ID_PROPERTY: Final = "moldau.export.topic-id"
RETRIES_PROPERTY: Final = "commit.retry.num-retries"
CATALOG_FILE: Final = "catalog.db"


def open_catalog(folder: str) -> SqlCatalog:
    """A catalog in SQLite in a local folder, which is its warehouse, too."""
    path = os.path.abspath(folder)
    os.makedirs(path, exist_ok=True)
    return SqlCatalog(
        "moldau", uri=f"sqlite:///{os.path.join(path, CATALOG_FILE)}", warehouse=f"file://{path}"
    )


def table_name(topic: str) -> tuple[str, str]:
    """Topics have dots in their names, which would be namespaces."""
    return NAMESPACE, topic.replace(".", "_")


def export_iceberg(
    source: Source,
    catalog: SqlCatalog,
    find_bounds: Callable[[], Bounds],
    run: RunUnits,
    unit_records_max: int,
) -> list[Written]:
    """Bring the table up to where the topic ends now; the files that were added.

    Raises :class:`ToolError` when another driver has committed meanwhile: run it again.
    """
    found = _find_table(catalog, source.topic)
    bounds = find_bounds()  # after the table: the topic never ends before what is exported of it
    table = found or _create_table(catalog, source.topic, bounds.topic_id)
    properties = table.properties
    if properties[TOPIC_ID_PROPERTY] != bounds.topic_id:
        label = ".".join(table.name())
        raise ToolError(
            f"table {label} is an export of an earlier topic {source.topic}: it was created again since"
        )
    exported = {int(key): end for key, end in json.loads(properties[OFFSETS_PROPERTY]).items()}
    ranges = pending(source.topic, exported, bounds, may_lose=source.may_lose)
    if not ranges:
        return []
    folder = os.path.join(table.location().removeprefix("file://"), "data")
    written = run(AttemptUnits(source, folder), split(ranges, unit_records_max))
    filled = [file for file in written if file.records]
    if not filled:
        # Nothing but markers and holes: to move on without a snapshot would not exclude another driver.
        return []
    ends = {**exported, **{partition: end for partition, _, end in ranges}}
    progress = {
        OFFSETS_PROPERTY: json.dumps(ends, sort_keys=True),
        BATCH_PROPERTY: str(int(properties[BATCH_PROPERTY]) + 1),
    }
    _commit(table, filled, progress)
    return filled


def _find_table(catalog: SqlCatalog, topic: str) -> Table | None:
    name = table_name(topic)
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        return None
    if table.properties.get(TOPIC_PROPERTY) != topic:
        raise ToolError(f"table {'.'.join(name)} is no export of topic {topic}")
    if table.properties.get(RETRIES_PROPERTY) != "0":
        raise ToolError(f"table {'.'.join(name)}: set {RETRIES_PROPERTY} to 0, or records may come twice")
    return table


def _create_table(catalog: SqlCatalog, topic: str, topic_id: str) -> Table:
    with contextlib.suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(NAMESPACE)
    return catalog.create_table_if_not_exists(
        table_name(topic),
        schema=SCHEMA,
        properties={
            TOPIC_PROPERTY: topic,
            TOPIC_ID_PROPERTY: topic_id,
            OFFSETS_PROPERTY: "{}",
            BATCH_PROPERTY: "0",
            # A retry would put the files on top of another driver's snapshot instead of being refused.
            RETRIES_PROPERTY: "0",
        },
    )


def _commit(table: Table, files: list[Written], progress: dict[str, Any]) -> None:
    try:
        with table.transaction() as change:
            change.set_properties(progress)
            change.add_files(
                [f"file://{file.path}" for file in files],
                snapshot_properties=progress,
                check_duplicate_files=False,
            )
    except CommitFailedException as error:
        raise ToolError(
            f"another driver has committed to table {'.'.join(table.name())} meanwhile: run the export again"
        ) from error
