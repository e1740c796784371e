"""Tables in a catalog of pyiceberg's configuration. The files of the tables are in an object store."""

import json
import pathlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")
pytest.importorskip("pyiceberg", reason="needs PyIceberg: pip install 'moldau[spark]'")

from exporting import create_topic, produce_values, run_here

import moldau.testing
from moldau.client.errors import ToolError
from moldau.pipeline.export.catalogs import open_catalog
from moldau.pipeline.export.iceberg import dead_letters_name, table_name
from moldau.pipeline.export.job import ExportJob, export_once
from moldau.pipeline.values.formats import json_format


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node() as running:
        create_topic(running, "orders")
        yield running


def s3_catalog(tmp_path: pathlib.Path, endpoint: str, bucket: str) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path / 'catalog.db'}",
        "warehouse": f"s3://{bucket}/lake",
        "s3.endpoint": endpoint,
        "s3.access-key-id": "test",
        "s3.secret-access-key": "test",
        "s3.region": "us-east-1",
    }


def test_a_table_in_an_object_store(
    node: moldau.testing.Node,
    tmp_path: pathlib.Path,
    s3_endpoint: str,
    s3_bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An export can name its catalog by properties, or by a name in pyiceberg's configuration. A replay uses
    the export's catalog, too."""
    properties = s3_catalog(tmp_path, s3_endpoint, s3_bucket)
    job = ExportJob(
        node.bootstrap_servers,
        "orders",
        "lake",
        "iceberg",
        values=json_format("total INT"),
        catalog_properties=properties,
    )
    produce_values(node, "orders", [b'{"total": 1}', b"oops", b'{"total": 2}'])
    done = export_once(job, run_here)
    assert (done.records, done.dead_letters) == (2, 1)
    assert {file.path.partition("/lake/")[0] for file in done.files} == {f"s3://{s3_bucket}"}
    assert done.size_bytes > 0

    for name, value in properties.items():
        monkeypatch.setenv(
            f"PYICEBERG_CATALOG__LAKE__{name.upper().replace('.', '__').replace('-', '_')}", value
        )
    configured = replace(job, catalog_properties={})
    produce_values(node, "orders", [b'{"total": 3}'], partition=1)
    assert export_once(configured, run_here).records == 1
    assert export_once(replace(configured, replay=True), run_here).records == 0
    catalog = open_catalog("lake")
    rows = catalog.load_table(table_name("orders")).scan().to_arrow().to_pylist()
    assert sorted(row["value"]["total"] for row in rows) == [1, 2, 3]
    (dead,) = catalog.load_table(dead_letters_name("orders")).scan().to_arrow().to_pylist()
    assert (dead["value"], dead["offset"]) == (b"oops", 1)
    assert json.loads(catalog.load_table(table_name("orders")).properties["moldau.export.offsets"]) == {
        "0": 3,
        "1": 1,
    }
    assert not (tmp_path / "lake").exists()


def test_a_catalog_that_cannot_be_opened_is_an_error_of_one_line() -> None:
    with pytest.raises(ToolError, match="s3://bucket/lake is no local folder: name a catalog"):
        open_catalog("s3://bucket/lake")
    with pytest.raises(ToolError, match="the catalog lake cannot be opened") as failure:
        open_catalog("lake", {"type": "nonsense"})
    assert "\n" not in str(failure.value)
    for name in ("a#b", "a?b", "a%41b"):
        with pytest.raises(ToolError, match="Iceberg names files by URIs"):
            open_catalog(f"/somewhere/{name}")


def test_plain_parquet_stays_on_this_machine(node: moldau.testing.Node) -> None:
    job = ExportJob(node.bootstrap_servers, "orders", "s3://bucket/orders", "parquet")
    with pytest.raises(ToolError, match="plain Parquet goes to a local folder"):
        export_once(job, run_here)
