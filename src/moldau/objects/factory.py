"""Makes an :class:`ObjectStorage` from ``diskless.storage.*``. The result is ready for use."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, cast
from urllib.parse import unquote, urlsplit

from moldau.metrics import Meters
from moldau.objects.file_storage import FileStorage
from moldau.objects.health import StorageHealth
from moldau.objects.memory_storage import MemoryStorage
from moldau.objects.metered import MeteredStorage
from moldau.objects.obstore_storage import open_obstore
from moldau.objects.retrying import RetryingStorage, RetryPolicy
from moldau.objects.storage import ObjectStorage, StorageError
from moldau.runtime import Machine

__all__ = ["StorageMaker", "StorageSettings", "open_by_url", "open_storage"]

StorageMaker: TypeAlias = Callable[[str, Mapping[str, str], Machine], ObjectStorage]
"""The function that ``diskless.storage.class.name`` names. It gets the URL, the other options and the
machine.
"""

OWNER_OPTION = "owner"
"""The option with the name of the uploading node, for nodes that share a folder."""
DEFAULT_CLASS_NAME = "moldau.objects.open_by_url"

_OBSTORE_SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "https")


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """``diskless.storage.url``, ``diskless.storage.class.name`` and the other keys with that prefix. The
    prefix is removed."""

    url: str
    class_name: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def open_storage(
    settings: StorageSettings,
    machine: Machine,
    meters: Meters,
    *,
    policy: RetryPolicy | None = None,
    health: StorageHealth | None = None,
) -> RetryingStorage:
    """The configured store, with meters and retries. Call ``check`` before use.

    Raises :class:`StorageError`, which names the error in the class, the URL or an option.
    """
    make = _load(settings.class_name or DEFAULT_CLASS_NAME)
    try:
        storage = make(settings.url, settings.options, machine)
    except TypeError as error:
        raise StorageError(
            f"diskless.storage.class.name {settings.class_name}: {error}", transient=False
        ) from error
    return RetryingStorage(
        MeteredStorage(storage, meters),
        machine.entropy,
        policy=policy,
        health=health or StorageHealth(),
        name=settings.url.split("?", 1)[0],
    )


def open_by_url(url: str, options: Mapping[str, str], machine: Machine) -> ObjectStorage:
    """The default function that makes a store. It supports ``file:///path`` and ``memory://``. All other URLs
    are opened by obstore."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StorageError(f"diskless.storage.url {url!r}: {error}", transient=False) from error
    if parts.scheme == "memory":
        return MemoryStorage(machine.clock)
    if parts.scheme == "file":
        path = unquote(parts.path)
        if parts.netloc or not path.startswith("/"):
            raise StorageError(f"diskless.storage.url {url}: write file:///absolute/path", transient=False)
        return FileStorage(machine, path, options.get(OWNER_OPTION, ""))
    if parts.scheme in _OBSTORE_SCHEMES and parts.netloc:
        if parts.scheme != "https" and ":" in parts.netloc:
            raise StorageError(
                f"diskless.storage.url {url!r}: {parts.netloc!r} is no bucket; a server's address belongs to"
                " diskless.storage.endpoint",
                transient=False,
            )
        return open_obstore(url, options)
    raise StorageError(
        f"diskless.storage.url {url!r}: not one of s3://bucket/prefix, gs://bucket/prefix,"
        " az://container/prefix, file:///path, memory://",
        transient=False,
    )


def _load(name: str) -> StorageMaker:
    module_name, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        maker = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise StorageError(f"diskless.storage.class.name {name}: {error}", transient=False) from error
    if not callable(maker):
        raise StorageError(f"diskless.storage.class.name {name} is not callable", transient=False)
    return cast(StorageMaker, maker)
