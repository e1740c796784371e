"""A class for ``diskless.storage.class.name``. It makes a store with added latency, by default the latency of
S3."""

from collections.abc import Mapping

from moldau.objects.factory import open_by_url
from moldau.objects.faults import S3_LATENCY, FaultyStorage, Latency, StorageWeather
from moldau.objects.storage import ObjectStorage, StorageError
from moldau.runtime import Machine

__all__ = ["LATENCY_OPTIONS", "open_with_latency"]

LATENCY_OPTIONS = ("latency.put.p50.ms", "latency.put.p99.ms", "latency.get.p50.ms", "latency.get.p99.ms")


def open_with_latency(url: str, options: Mapping[str, str], machine: Machine) -> ObjectStorage:
    """The store of ``url`` with latency before each request. By default it is S3's latency.

    The options are ``latency.put.p50.ms``, ``latency.put.p99.ms``, ``latency.get.p50.ms``,
    ``latency.get.p99.ms``. In a node's configuration they have the prefix ``diskless.storage.``. All other
    options belong to the store. This function is for benchmarks and trials.
    """
    rest = {name: value for name, value in options.items() if name not in LATENCY_OPTIONS}
    storage = open_by_url(url, rest, machine)
    weather = StorageWeather(put_latency=_latency(options, "put"), get_latency=_latency(options, "get"))
    return FaultyStorage(storage, machine.entropy, weather)


def _latency(options: Mapping[str, str], kind: str) -> Latency:
    def milliseconds(percentile: str, default: float) -> float:
        name = f"latency.{kind}.{percentile}.ms"
        text = options.get(name)
        if text is None:
            return default
        try:
            return float(text)
        except ValueError:
            raise StorageError(f"diskless.storage.{name} {text!r} is not a number", transient=False) from None

    return Latency(milliseconds("p50", S3_LATENCY.p50_ms), milliseconds("p99", S3_LATENCY.p99_ms))
