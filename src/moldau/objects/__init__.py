"""Object stores: a narrow protocol, its adapters, and wrappers that retry requests, count requests and inject
faults.
"""

from moldau.objects.factory import StorageSettings, open_by_url, open_storage
from moldau.objects.faults import S3_LATENCY, FaultyStorage, Latency, StorageWeather
from moldau.objects.file_storage import FileStorage
from moldau.objects.health import HealthState, StorageHealth, StorageHealthReport
from moldau.objects.latency import open_with_latency
from moldau.objects.memory_storage import MemoryStorage
from moldau.objects.metered import MeteredStorage
from moldau.objects.retrying import RetryBudget, RetryingStorage, RetryPolicy
from moldau.objects.storage import (
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStorage,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
)

__all__ = [
    "S3_LATENCY",
    "FaultyStorage",
    "FileStorage",
    "HealthState",
    "Latency",
    "MemoryStorage",
    "MeteredStorage",
    "ObjectInfo",
    "ObjectNotFoundError",
    "ObjectStorage",
    "RetryBudget",
    "RetryPolicy",
    "RetryingStorage",
    "StorageError",
    "StorageHealth",
    "StorageHealthReport",
    "StorageSettings",
    "StorageTimeoutError",
    "StorageWeather",
    "ThrottledError",
    "open_by_url",
    "open_storage",
    "open_with_latency",
]
