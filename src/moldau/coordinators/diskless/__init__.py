"""The diskless coordinator (KIP-1164): who assigns offsets to batches that lie in objects.

``calls`` says what can be asked of it; ``service`` answers. ``shard`` decides, ``records`` is what the
decisions look like in ``__diskless_metadata``, ``store`` holds the whole of it in SQLite.
"""
