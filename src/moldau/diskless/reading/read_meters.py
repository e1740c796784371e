"""Meters of reads of diskless topics (KIP-1163, Monitoring): rates, sizes, GETs per fetch."""

from moldau.metrics import BYTES_BOUNDS, Meters

GETS_BOUNDS = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500)


class ReadMeters:
    """Meters of the consume path. There are three separate sets: for the tail lane, for the catch-up lane,
    and for cold reads."""

    def __init__(self, meters: Meters, path: str) -> None:
        scope = meters.scoped("moldau.diskless", "Read")
        self.gets = scope.counter("ObjectGetsPerSec", "Ranged requests to the object store.", path=path)
        self.get_bytes = scope.counter(
            "ObjectGetBytesPerSec", "Bytes of ranged requests to the object store.", path=path
        )
        self.get_errors = scope.counter(
            "ObjectGetErrorsPerSec",
            "Requests to the object store that failed, also when they were repeated.",
            path=path,
        )
        self.get_time_ms = scope.histogram("ObjectGetTimeMs", "Time of a ranged request.", path=path)
        self.memory_reads = scope.counter(
            "MemoryReadsPerSec",
            "Ranges that were read from memory, without a request, because this broker wrote the object.",
            path=path,
        )
        self.memory_bytes = scope.counter(
            "MemoryReadBytesPerSec", "Bytes of ranges that were read from memory.", path=path
        )
        self.find_time_ms = scope.histogram(
            "FindBatchesTimeMs",
            "Time of requests to the coordinator for the positions of batches, without the wait for "
            "new batches.",
            path=path,
        )
        self.rounds = scope.counter("RoundsPerSec", "Rounds of reads that found batches.", path=path)
        self.gets_per_round = scope.histogram(
            "ObjectGetsPerRound", "Ranged requests of one round of reads.", GETS_BOUNDS, path=path
        )
        self.round_bytes = scope.histogram(
            "RoundBytes", "Bytes of batches in one round of reads.", BYTES_BOUNDS, path=path
        )
        self.lost_objects = scope.counter(
            "ObjectsGonePerSec",
            "Objects that were missing when they were read. Their batches are looked up again.",
            path=path,
        )
        self.corrupt_batches = scope.counter(
            "CorruptBatchesPerSec", "Batches whose bytes differ from the committed bytes.", path=path
        )


class RackReadMeters:
    """Meters of objects that one broker of a rack reads for the other brokers of the rack."""

    def __init__(self, meters: Meters) -> None:
        scope = meters.scoped("moldau.diskless", "RackReads")
        self.gets = scope.counter(
            "ObjectGetsPerSec", "Whole objects that this broker read from the store for its rack."
        )
        self.get_bytes = scope.counter(
            "ObjectGetBytesPerSec", "Bytes of whole objects that this broker read for its rack."
        )
        self.get_errors = scope.counter(
            "ObjectGetErrorsPerSec",
            ("Requests to the object store that failed, also when they were repeated."),
        )
        self.get_time_ms = scope.histogram("ObjectGetTimeMs", "Time of a request for a whole object.")
        self.peer_reads = scope.counter(
            "PeerReadsPerSec", "Ranges that this broker read from another broker of its rack."
        )
        self.peer_bytes = scope.counter(
            "PeerReadBytesPerSec", "Bytes of ranges from other brokers of the rack."
        )
        self.served = scope.counter(
            "ServedPerSec", "Ranges that this broker sent to other brokers of its rack."
        )
        self.served_bytes = scope.counter(
            "ServedBytesPerSec", "Bytes of ranges for other brokers of the rack."
        )
        self.spilled_reads = scope.counter(
            "SpilledReadsPerSec", "Ranges of whole objects that were read from this broker's disk."
        )
        self.spilled_bytes = scope.counter(
            "SpilledReadBytesPerSec", "Bytes of ranges that were read from this broker's disk."
        )
        self.fallbacks = scope.counter(
            "FallbacksPerSec",
            "Ranges that were read from the store because the broker that reads the object for the "
            "rack failed.",
        )


class ColdReadMeters(ReadMeters):
    """Meters of cold reads. One of them is the number of GET requests per Fetch request, which KIP-1163
    requires."""

    def __init__(self, meters: Meters) -> None:
        super().__init__(meters, "cold")
        scope = meters.scoped("moldau.diskless", "Fetch")
        self.gets_per_fetch = scope.histogram(
            "ObjectGetsPerFetch",
            "Ranged requests to the object store for a Fetch request that needed more than local segments.",
            GETS_BOUNDS,
        )


class FetchMeters:
    """Counts the reads of Fetch requests by the source of their data: local segments or objects."""

    def __init__(self, meters: Meters) -> None:
        scope = meters.scoped("moldau.diskless", "Fetch")
        self.cache_hits = scope.counter("CacheHitsPerSec", "Reads answered from local segments.")
        self.cache_hit_bytes = scope.counter(
            "CacheHitBytesPerSec", "Bytes of reads answered from local segments."
        )
        self.cold_reads = scope.counter("ColdReadsPerSec", "Reads answered from objects.")
        self.cold_bytes = scope.counter("ColdReadBytesPerSec", "Bytes of reads answered from objects.")
        self.errors = scope.counter("ErrorsPerSec", "Reads that failed at the object store or a coordinator.")
