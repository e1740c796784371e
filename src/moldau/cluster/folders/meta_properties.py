"""``meta.properties``: the node and the cluster to which a log folder belongs (version 1, in Kafka's
form)."""

import base64
import binascii
import uuid
from dataclasses import dataclass

from moldau.runtime import Disk

FILE_NAME = "meta.properties"
_ADVICE = "If it was damaged, see 'A folder without meta.properties' in docs/operations.md."


class FormatError(Exception):
    """A folder cannot be used in its present state. The message is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The values of the file. ``directory_id`` is ``None`` in folders that Kafka formatted before 3.7."""

    cluster_id: str
    node_id: int
    directory_id: uuid.UUID | None

    def encode(self) -> bytes:
        """The file's content: keys in Kafka's order."""
        entries = {"cluster.id": self.cluster_id}
        if self.directory_id is not None:
            entries["directory.id"] = encode_uuid(self.directory_id)
        entries |= {"node.id": str(self.node_id), "version": "1"}
        return "".join(["#\n", *(f"{key}={value}\n" for key, value in entries.items())]).encode()


def read_meta_properties(disk: Disk, folder: str) -> MetaProperties | None:
    """Read a folder's ``meta.properties``; ``None`` if the folder was never formatted. Raises
    :class:`FormatError`."""
    path = f"{folder}/{FILE_NAME}"
    try:
        content = disk.read(path)
    except FileNotFoundError:
        return None
    values: dict[str, str] = {}
    for line in content.decode("utf-8", "replace").splitlines():
        if line.strip() and not line.lstrip().startswith(("#", "!")):
            key, _, value = line.partition("=")
            # Java's Properties class writes '=' and ':' in values with a backslash. Ids in base64 may end in
            # '='.
            values[key.strip()] = value.strip().replace("\\=", "=").replace("\\:", ":")
    if values.get("version") != "1":
        found = values.get("version", "none")
        raise FormatError(f"{path} has version {found}; only version 1 (KRaft) can be used. {_ADVICE}")
    cluster_id = values.get("cluster.id", "none")
    # The cluster id must not contain '/', because it also becomes a part of names in object stores.
    if not cluster_id or "/" in cluster_id or not (cluster_id.isascii() and cluster_id.isprintable()):
        raise FormatError(f"{path} is damaged: its cluster.id is {values['cluster.id']!r}. {_ADVICE}")
    try:
        directory = values.get("directory.id")
        return MetaProperties(
            cluster_id=values["cluster.id"],
            node_id=int(values["node.id"]),
            directory_id=None if directory is None else decode_uuid(directory),
        )
    except KeyError as error:
        raise FormatError(f"{path} lacks {error.args[0]}. {_ADVICE}") from None
    except ValueError as error:
        raise FormatError(f"{path} is damaged: {error}. {_ADVICE}") from None


def encode_uuid(value: uuid.UUID) -> str:
    """22 characters of URL-safe base64, as Kafka writes ids."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> uuid.UUID:
    """The inverse of :func:`encode_uuid`; raises ``ValueError`` with the reason."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise ValueError(f"'{text}' is not base64") from None
    if len(raw) != 16:
        raise ValueError(f"'{text}' has {len(raw)} bytes where an id has 16")
    return uuid.UUID(bytes=raw)
