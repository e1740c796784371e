"""A plug-in store, for ``diskless.storage.class.name``."""

from collections.abc import Mapping

from moldau.objects import MemoryStorage, ObjectStorage
from moldau.runtime import Machine


def open_plugin(url: str, options: Mapping[str, str], machine: Machine) -> ObjectStorage:
    assert (url, options) == ("any://thing", {"colour": "blue"})
    return MemoryStorage(machine.clock)


class TakesNothing:
    pass
