"""How diskless partitions leave the WAL: their batches become segments in remote storage (KIP-1163, KIP-405).

A partition's leader plans which offsets make the next segments and records them as COPY_SEGMENT_STARTED;
whoever builds them (this broker, or a task of an outside engine) copies them; the leader records them as
COPY_SEGMENT_FINISHED and then asks the coordinator to move ``wal_start`` behind them. That prune is the only
compare-and-set: whatever fails before it leaves segments that nobody needs, never a hole.
"""
