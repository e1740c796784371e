"""Meters of reads of diskless topics (KIP-1163, Monitoring): rates, sizes, GETs per fetch."""

from moldau.metrics import BYTES_BOUNDS, Meters

GETS_BOUNDS = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500)


class ReadMeters:
    """Meters of the consume path. There are separate sets for the cacher's tail, for catching up, and for
    cold reads.
    """

    def __init__(self, meters: Meters, path: str) -> None:
        scope = meters.scoped("moldau.diskless", "Read")
        self.gets = scope.counter("ObjectGetsPerSec", "Ranged requests to the object store.", path=path)
        self.get_bytes = scope.counter("ObjectGetBytesPerSec", "Bytes of those requests.", path=path)
        self.get_errors = scope.counter(
            "ObjectGetErrorsPerSec", "Requests that failed in the end.", path=path
        )
        self.get_time_ms = scope.histogram("ObjectGetTimeMs", "Time of a ranged request.", path=path)
        self.memory_reads = scope.counter(
            "MemoryReadsPerSec", "Ranges of objects that this broker wrote itself: no request.", path=path
        )
        self.memory_bytes = scope.counter("MemoryReadBytesPerSec", "Bytes of those ranges.", path=path)
        self.find_time_ms = scope.histogram(
            "FindBatchesTimeMs",
            "Time of asking the coordinator where batches lie, without waiting for them.",
            path=path,
        )
        self.rounds = scope.counter("RoundsPerSec", "Rounds that found something to read.", path=path)
        self.gets_per_round = scope.histogram(
            "ObjectGetsPerRound", "Ranged requests that a round needed.", GETS_BOUNDS, path=path
        )
        self.round_bytes = scope.histogram(
            "RoundBytes", "Bytes of batches that a round read.", BYTES_BOUNDS, path=path
        )
        self.lost_objects = scope.counter(
            "ObjectsGonePerSec", "Objects that were gone when they were read; looked up again.", path=path
        )
        self.corrupt_batches = scope.counter(
            "CorruptBatchesPerSec", "Batches whose bytes are not what was committed.", path=path
        )


class RackReadMeters:
    """Meters of objects that brokers of a rack read for each other."""

    def __init__(self, meters: Meters) -> None:
        scope = meters.scoped("moldau.diskless", "RackReads")
        self.gets = scope.counter("ObjectGetsPerSec", "Objects read whole from the store, for the rack.")
        self.get_bytes = scope.counter("ObjectGetBytesPerSec", "Bytes of those objects.")
        self.get_errors = scope.counter("ObjectGetErrorsPerSec", "Requests that failed in the end.")
        self.get_time_ms = scope.histogram("ObjectGetTimeMs", "Time of a request for a whole object.")
        self.peer_reads = scope.counter("PeerReadsPerSec", "Ranges that another broker of the rack had.")
        self.peer_bytes = scope.counter("PeerReadBytesPerSec", "Bytes of those ranges.")
        self.served = scope.counter("ServedPerSec", "Ranges that other brokers of the rack were given.")
        self.served_bytes = scope.counter("ServedBytesPerSec", "Bytes of those ranges.")
        self.fallbacks = scope.counter(
            "FallbacksPerSec", "Ranges read from the store because the rack's reader of the object failed."
        )


class ColdReadMeters(ReadMeters):
    """Meters of cold reads, with the KIP's GET requests per Fetch request."""

    def __init__(self, meters: Meters) -> None:
        super().__init__(meters, "cold")
        scope = meters.scoped("moldau.diskless", "Fetch")
        self.gets_per_fetch = scope.histogram(
            "ObjectGetsPerFetch",
            "Ranged requests for a Fetch request that local segments could not answer alone.",
            GETS_BOUNDS,
        )


class FetchMeters:
    """Counts the sources from which reads of Fetch requests were answered."""

    def __init__(self, meters: Meters) -> None:
        scope = meters.scoped("moldau.diskless", "Fetch")
        self.cache_hits = scope.counter("CacheHitsPerSec", "Reads answered from local segments.")
        self.cache_hit_bytes = scope.counter("CacheHitBytesPerSec", "Bytes of those reads.")
        self.cold_reads = scope.counter("ColdReadsPerSec", "Reads answered from objects.")
        self.cold_bytes = scope.counter("ColdReadBytesPerSec", "Bytes of those reads.")
        self.errors = scope.counter("ErrorsPerSec", "Reads that failed at the object store or a coordinator.")
