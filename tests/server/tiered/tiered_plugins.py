"""Plug-in managers for ``remote.log.*.manager.class.name``."""

from collections.abc import Callable, Mapping

from moldau.metrics import Meters
from moldau.objects import MemoryStorage
from moldau.runtime import Machine
from moldau.tiered.storage.object_storage_manager import ObjectStorageManager
from moldau.tiered.storage.storage_manager import RemoteStorageError

GIVEN: list[dict[str, str]] = []


def open_storage(configs: Mapping[str, str], machine: Machine, meters: Meters) -> ObjectStorageManager:
    GIVEN.append(dict(configs))
    if configs.get("colour") == "red":
        raise RemoteStorageError("colour: it must not be red", transient=False)
    return ObjectStorageManager(MemoryStorage(machine.clock))


class Takes:
    """A metadata manager that stores the configs which it gets, and does nothing."""

    def __init__(self, configs: Mapping[str, str], machine: Machine, meters: Meters) -> None:
        self.configs = dict(configs)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Every method exists, and does nothing."""
        return lambda *_: None


def open_nothing(configs: Mapping[str, str], machine: Machine, meters: Meters) -> None:
    """Return nothing instead of a manager."""


def open_badly(configs: Mapping[str, str], machine: Machine, meters: Meters) -> ObjectStorageManager:
    raise KeyError(configs["colour"])


NO_MAKER = 5
