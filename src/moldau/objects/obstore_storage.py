"""S3 and compatible stores, Google Cloud Storage and Azure, through obstore.

obstore runs on its own threads and reads a contiguous view without copying it. Its own retries are off, so
that :class:`moldau.objects.retrying.RetryingStorage` sees and counts every attempt.
"""

import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.store import ObjectStore, from_url

from moldau.objects.obstore_errors import OBSTORE_ERRORS, translated
from moldau.objects.obstore_exit import leave_python_before_exit
from moldau.objects.storage import (
    DELETE_CHUNK_KEYS,
    LIST_PAGE_KEYS,
    ObjectInfo,
    StorageError,
    check_by_use,
    check_folder,
    check_key,
    check_length,
)
from moldau.runtime.buffers import Buffer

__all__ = ["ObstoreStorage", "open_obstore"]

_CLIENT_OPTIONS = frozenset(
    (
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "proxy_excludes",
        "proxy_ca_certificate",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    )
)
_FLAGS = {"true": True, "false": False}
_S3_SCHEMES = ("s3", "s3a")
_WEB_SCHEMES = ("http", "https", "socks5", "socks5h")
_REGION = re.compile(r"[A-Za-z0-9-]+")


class ObstoreStorage:
    """An object store that is accessed through obstore. ``name`` is the store's name in errors (its URL)."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name

    @property
    def store(self) -> ObjectStore:
        """The obstore object. It is for calls that brokers do not need."""
        return self._store

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        check_key(key)
        view = check_length(key, data, length)
        try:
            await obstore.put_async(self._store, key, view, use_multipart=False)
        except OBSTORE_ERRORS as error:
            raise translated(error) from error

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        check_key(key)
        try:
            content = await obstore.get_range_async(self._store, key, start=offset, length=size)
        except OBSTORE_ERRORS as error:
            raise translated(error, key) from error
        if len(content) != size:
            # A broken connection would have raised an error. Therefore a short response means that the object
            # is shorter than the requested range.
            raise StorageError(
                f"{key}: {len(content)} of {size} bytes from {offset} are there", transient=False
            )
        return memoryview(content)

    async def delete(self, keys: Collection[str]) -> None:
        doomed = list(keys)
        for key in doomed:
            check_key(key)
        for position in range(0, len(doomed), DELETE_CHUNK_KEYS):
            await self._delete_chunk(doomed[position : position + DELETE_CHUNK_KEYS])

    async def _delete_chunk(self, keys: list[str]) -> None:
        try:
            await obstore.delete_async(self._store, keys)
        except FileNotFoundError as error:
            # Stores without a bulk request stop at the first absent key, so the other keys are deleted one by
            # one.
            if len(keys) > 1:
                for key in keys:
                    await self._delete_chunk([key])
                return
            failure = translated(error, keys[0])
            if type(failure) is StorageError:
                raise failure from error
        except OBSTORE_ERRORS as error:
            raise translated(error) from error

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        check_folder(prefix)
        pages = obstore.list(
            self._store, prefix or None, offset=start_after or None, chunk_size=LIST_PAGE_KEYS
        )
        try:
            async for page in pages:
                yield [
                    ObjectInfo(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))
                    for meta in page
                ]
        except OBSTORE_ERRORS as error:
            raise translated(error) from error

    async def check(self) -> None:
        await check_by_use(self, self._name)

    async def close(self) -> None:
        pass


def open_obstore(url: str, options: Mapping[str, str]) -> ObstoreStorage:
    """The store at ``s3://``, ``gs://`` or ``az://bucket/prefix``.

    ``options`` are obstore's own configuration keys, written with dots or underscores (``region``,
    ``endpoint``, ``access.key.id``, ``account.name``, ``allow.http``, ``timeout`` …) and ``path.style``. The
    option ``path.style`` puts the bucket into the path, as most S3-compatible servers require. Raises
    :class:`StorageError`, which names the wrong part.
    """
    leave_python_before_exit()
    config, client_options = _split(options)
    _check_addresses({**config, **client_options})
    if urlsplit(url).scheme in _S3_SCHEMES:
        _default_s3(config, client_options)
    name = url.split("?", 1)[0]
    try:
        # The type checker does not check this call. The function has different types of options for each kind
        # of store, and the kind depends on the URL.
        open_any: Any = from_url
        store: ObjectStore = open_any(
            url,
            config=config,
            client_options=client_options,
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=60)},
        )
    except (*OBSTORE_ERRORS, TypeError) as error:
        failure = translated(error)
        raise StorageError(f"cannot use object storage {name}: {failure}", transient=False) from error
    return ObstoreStorage(store, name)


def _split(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    config: dict[str, Any] = {}
    client_options: dict[str, Any] = {}
    for name, text in options.items():
        key = name.replace(".", "_").replace("-", "_")
        value: str | bool = _FLAGS.get(text.lower(), text)
        if key == "path_style":
            config["virtual_hosted_style_request"] = not value
        elif key in _CLIENT_OPTIONS:
            client_options[key] = value
        else:
            config[key] = value
    return config, client_options


def _check_addresses(options: Mapping[str, Any]) -> None:
    """Raise ``StorageError`` for invalid addresses. Otherwise a thread of the library object_store would
    panic because of the address, and print a stack trace."""
    for key, value in options.items():
        if key.endswith("region") and not _REGION.fullmatch(str(value)):
            raise StorageError(
                f"diskless.storage {key} {value!r} is not the name of a region", transient=False
            )
        if key.endswith(("endpoint", "url")) and not _is_web_address(str(value)):
            raise StorageError(
                f"diskless.storage {key} {value!r} is no address: write http://host:port or https://host",
                transient=False,
            )


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError if the port is not a number
    except ValueError:
        return False
    return parts.scheme in _WEB_SCHEMES and bool(parts.hostname) and not re.search(r"\s", text)


def _default_s3(config: dict[str, Any], client_options: dict[str, Any]) -> None:
    """Set the defaults of S3's options that are not given. An ``endpoint`` gets a region and has the bucket
    in the path. Payloads are signed only without TLS. With TLS they need no signature, and signing would cost
    a third of the upload rate.
    """
    is_clear = str(config.get("endpoint", "")).startswith("http://")
    config.setdefault("unsigned_payload", not is_clear)
    if "endpoint" in config:
        config.setdefault("virtual_hosted_style_request", False)
        config.setdefault("region", "us-east-1")
    if is_clear:
        client_options.setdefault("allow_http", True)
