"""Moldau's own APIs (KIP-1114/1163/1164/1165 and internal calls), declared like Kafka's.

The messages of an API are in one of two places:

- in the module that declares its call, as in ``moldau.diskless.reading.rack_call``. Such a module declares a
  single call;
- in ``own/<room>/<name>.py``. This is necessary if a module declares several calls. It is also necessary if a
  package on a lower floor than the package of the call uses the messages. The controller is such a package.

In both places, the module has the message classes in the form of ``moldau.protocol.schema``. Its docstring
begins with the name of the API, and the module ends in::

    REQUEST = CommitFileRequest
    RESPONSE = CommitFileResponse

``MODULES`` has a row for each API: API key -> (module, versions, flexible versions), with the same values as
in the classes. ``codec``, ``framing`` and ``api`` then support the key. Its scope is INTERNAL, so it is never
advertised to clients. The module is imported when its first message is encoded or decoded. So this package
imports no package on a higher floor.

The declaration of a call is in a table ``CALLS``, or in ``DECISIONS`` of the controller. A table ``CALLS`` is
in the package that does the work, and a subsystem contributes the table. ``docs/architecture/adding.md``
describes this.

Records need no row. Their schemas are in ``moldau.protocol.records``.
"""

from moldau.protocol.schema import parse_versions

# API key: (module; versions; flexible versions). The module is relative to this package if it begins with a
# dot.
MODULES: dict[int, tuple[str, str, str]] = {
    # The list of Moldau's own APIs that a listener serves. Callers request it before any other of these APIs.
    11600: (".describe_own_apis", "0", "0+"),
    # Partition chunks. The first two APIs are KIP-1114's, and the other APIs are additional calls.
    11140: (".chunks.create_chunks", "0", "0+"),
    11141: (".chunks.alter_chunk_assignments", "0", "0+"),
    11142: (".chunks.hand_over_chunk", "0", "0+"),
    11143: (".chunks.read_chunk", "0", "0+"),
    11144: (".chunks.find_in_chunk", "0", "0+"),
    11145: (".chunks.report_chunks", "0", "0+"),
    11146: (".chunks.drop_chunks", "0", "0+"),
    11147: (".chunks.fetch_chunk_file", "0", "0+"),
    11148: (".chunks.store_chunk_segment", "0", "0+"),
    # The diskless coordinator. The number 11640 + n - 93 is KIP-1164's API n. The numbers from 11650 on are
    # additional calls.
    11640: (".diskless.create_partitions", "0", "0+"),
    11641: (".diskless.delete_topics", "0", "0+"),
    11642: (".diskless.commit_file", "0-3", "0+"),
    11643: (".diskless.delete_records", "0", "0+"),
    11644: (".diskless.list_offsets", "0-2", "0+"),
    11645: (".diskless.find_batches", "0-2", "0+"),
    11647: (".diskless.describe_files", "0", "0+"),
    11650: (".diskless.oldest_file", "0", "0+"),
    11651: (".diskless.close_files", "0", "0+"),
    11652: (".diskless.hand_over", "0", "0+"),
    11653: (".diskless.prune", "0", "0+"),
    11654: (".diskless.describe_topics", "0", "0+"),
    11655: (".diskless.describe_coordinator", "0", "0+"),
    11659: ("moldau.diskless.reading.rack_call", "0", "0+"),
    # Transactions in diskless partitions.
    11670: (".diskless.guard_transactions", "0", "0+"),
    11671: (".diskless.end_transactions", "0", "0+"),
    11672: (".diskless.describe_producers", "0", "0+"),
    11673: (".diskless.commit_parts", "0", "0+"),
    # Consolidation. An engine requests a plan, and builds segments from the WAL of diskless partitions.
    11656: (".consolidation.plan", "0", "0+"),
    11657: (".consolidation.publish", "0", "0+"),
    11658: (".consolidation.lease", "0", "0+"),
    # The remote tier.
    11660: (".tiered.describe_topics", "0", "0+"),
    11661: (".tiered.list_segments", "0", "0+"),
    11662: (".tiered.append_event", "0", "0+"),
    11663: (".tiered.event_offsets", "0", "0+"),
    # Saving the cluster's own logs in the object store.
    11680: ("moldau.backup.calls", "0", "0+"),
}


def register(api_key: int, module: str, versions: str, flexible: str = "0+") -> None:
    """Add an API at run time, before its first message. It is for tests and for extensions outside this
    folder.
    """
    if api_key in MODULES:
        raise ValueError(f"API key {api_key} is taken by {MODULES[api_key][0]}")
    parse_versions(versions), parse_versions(flexible)
    MODULES[api_key] = (module, versions, flexible)
