"""Consolidation: batches of diskless partitions leave the WAL and become segments in remote storage
(KIP-1163, KIP-405).

A partition's leader plans the next segments and records them as COPY_SEGMENT_STARTED; the builder (this
broker, or a task of an outside engine) copies them; the leader records them as COPY_SEGMENT_FINISHED and then
requests that the coordinator moves ``wal_start`` behind them. That prune is the only compare-and-set: a
failure before it leaves unneeded segments, but never a hole.
"""
