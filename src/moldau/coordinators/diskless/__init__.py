"""The diskless coordinator (KIP-1164): assigns offsets to batches that are stored in objects.

``calls`` declares its requests; ``service`` answers them. ``shard`` decides, ``records`` are the decisions as
stored in ``__diskless_metadata``, ``store`` materialises the whole state in SQLite.
"""
