"""Consolidation: batches of diskless partitions leave the WAL and become segments in remote storage
(KIP-1163, KIP-405).

A partition's leader plans the next segments and records them as COPY_SEGMENT_STARTED. A builder copies the
segments. The builder is this broker, or a task of an outside engine. The leader then records the segments as
COPY_SEGMENT_FINISHED. Finally it requests a prune: the coordinator moves ``wal_start`` to the end of these
segments. Only this step is a compare-and-set, because the prune names the expected ``wal_start``. A failure
before the prune leaves unneeded segments, but never a gap between the segments and the WAL.
"""
