"""Reads WAL objects and remote segments from an object store, by URL."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from moldau.cli.dump.file_kind import DumpedFile
from moldau.cli.errors import CommandError
from moldau.diskless.object_keys import parse_object_key
from moldau.objects import ObjectStorage, StorageError, open_by_url
from moldau.runtime import Machine
from moldau.tiered.storage.object_layout import parse_segment_key

KEY_PARTS: Final = 4
"""The key is ``wal/<shard>/<hour>/<name>`` or ``tiered/<topic>-<id>/<partition>/<name>``.

The part before the key is the URL in ``diskless.storage.url`` or ``rsm.config.url``.
"""


def split_url(url: str) -> tuple[str, str]:
    """The store's URL and the object's key. Raises :class:`CommandError`."""
    parts = url.rsplit("/", KEY_PARTS)
    key = "/".join(parts[1:])
    is_known = parse_object_key(key) is not None or parse_segment_key(key) is not None
    if len(parts) <= KEY_PARTS or not is_known or parts[0].endswith(":/"):
        raise CommandError(
            f"{url} is not the URL of a WAL object or a remote segment: the store's URL, then a key that "
            "`moldau diskless files` shows (wal/…), or that of a segment (tiered/…)"
        )
    return parts[0], key


def fetch(url: str, options: Mapping[str, str], *, deep: bool, decoder: str | None) -> DumpedFile:
    """The whole object. ``options`` are the options ``diskless.storage.*`` without that prefix.

    Raises :class:`CommandError` when the URL, the store or the object cannot be used.
    """
    store_url, key = split_url(url)
    try:
        content = asyncio.run(_fetch(store_url, key, options))
    except StorageError as error:
        raise CommandError(f"cannot read {url}: {error}") from error
    return DumpedFile(Path(key), content, deep, decoder)


async def _fetch(store_url: str, key: str, options: Mapping[str, str]) -> memoryview:
    storage = open_by_url(store_url, options, Machine.real())
    try:
        return memoryview(await storage.fetch(key, 0, await _size_bytes(storage, key)))
    finally:
        await storage.close()


async def _size_bytes(storage: ObjectStorage, key: str) -> int:
    folder = key.rpartition("/")[0] + "/"
    async for page in storage.list(folder):
        for found in page:
            if found.key == key:
                return found.size_bytes
    raise StorageError("there is no such object", transient=False)
