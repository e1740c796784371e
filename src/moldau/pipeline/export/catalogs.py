"""Opens the Iceberg catalog that ``--to`` names. It is a catalog of pyiceberg's configuration, or a local
folder with its own catalog."""

import glob
import os
from collections.abc import Mapping
from typing import Any, Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.utils.config import Config

from moldau.client.errors import ToolError
from moldau.pipeline.export.durable_io import DurableFileIO
from moldau.pipeline.export.parquet import check_no_parquet
from moldau.pipeline.export.targets import foreign_content, make_folder

CATALOG_FILE: Final = "catalog.db"
_MARKS_OF_URIS: Final = "#?%"
"""Special characters in URIs. The catalog and its readers interpret them in different ways."""


def check_no_iceberg(folder: str) -> None:
    """Raises :class:`ToolError` if a local folder belongs to a catalog or to an Iceberg table."""
    if os.path.exists(os.path.join(folder, CATALOG_FILE)) or glob.glob(
        os.path.join(glob.escape(folder), "metadata", "*.metadata.json")
    ):
        raise ToolError(f"{folder} holds Iceberg tables: --format iceberg, or another folder")


def open_catalog(to: str, properties: Mapping[str, str] | None = None) -> Catalog:
    """The catalog with the name ``to``; ``properties`` override pyiceberg's configuration.

    If neither ``properties`` nor the configuration describes such a catalog, ``to`` is a local folder. The
    folder is the warehouse and contains a catalog in SQLite. Raises :class:`ToolError` for a catalog that
    cannot be opened.
    """
    try:
        configured: dict[str, Any] | None = Config().get_catalog_config(to)
    except ValueError as error:
        raise ToolError(f"pyiceberg's configuration cannot be read: {error}") from error
    if configured is None and not properties:
        return _open_folder(to)
    try:
        return load_catalog(to, **{**(configured or {}), **(properties or {})})
    # A configuration may be wrong, a package may be missing, or a server may fail. Each catalog's library has
    # its own types of errors.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ToolError(f"the catalog {to} cannot be opened: {reason}") from error


def _open_folder(folder: str) -> SqlCatalog:
    if "://" in folder:
        raise ToolError(
            f"{folder} is no local folder: name a catalog of pyiceberg's configuration, or give"
            " --catalog-property type=…, uri=…, warehouse=…"
        )
    path = os.path.abspath(folder)
    if any(mark in path for mark in _MARKS_OF_URIS):
        raise ToolError(f"{path}: Iceberg names files by URIs, so a folder's path has none of # ? %")
    check_no_parquet(path)
    found = foreign_content(path)  # checked before another driver can create the catalog
    if found is not None and not os.path.exists(os.path.join(path, CATALOG_FILE)):
        raise ToolError(f"{path} holds {found}: take another folder")
    make_folder(path)
    properties = {
        "uri": f"sqlite:///{os.path.join(path, CATALOG_FILE)}",
        "warehouse": f"file://{path}",
        PY_IO_IMPL: f"{DurableFileIO.__module__}.{DurableFileIO.__qualname__}",
    }
    return SqlCatalog("moldau", **properties)
