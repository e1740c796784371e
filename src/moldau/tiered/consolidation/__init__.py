"""Consolidation: batches of diskless partitions leave the WAL and become segments in remote storage
(KIP-1163, KIP-405).

A partition's leader plans the next segments and records them as COPY_SEGMENT_STARTED. The builder (this
broker, or a task of an outside engine) copies them. The leader records them as COPY_SEGMENT_FINISHED. Then it
requests a prune, with which the coordinator moves ``wal_start`` to the end of these segments. This prune is
the only compare-and-set. A failure before the prune leaves unneeded segments, but never a gap between the
segments and the WAL.
"""
