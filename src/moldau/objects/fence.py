"""The right of a node to change an object store. Before each change, the node checks whether it has this
right."""

from typing import Protocol

__all__ = ["NoFence", "StoreFence"]


class StoreFence(Protocol):
    """Refuses the changes of a node whose cluster was restored elsewhere."""

    async def before_upload(self) -> None:
        """Check, and wait if necessary, that this node may store an object. Raises ``StorageError`` with the
        reason if it must not.
        """
        ...

    async def after_upload(self) -> None:
        """Check, after an upload, that this node was allowed to store objects during the whole upload. Raises
        ``StorageError`` with the reason if this is not certain.
        """
        ...

    async def before_delete(self) -> None:
        """Check, and wait if necessary, that this node may delete objects. Raises ``StorageError`` with the
        reason if it must not."""
        ...


class NoFence:
    """A fence that excludes no node."""

    async def before_upload(self) -> None: ...

    async def after_upload(self) -> None: ...

    async def before_delete(self) -> None: ...
