"""The diskless coordinator (KIP-1164): assigns offsets to batches that are stored in objects.

``calls`` declares its requests, and ``service`` answers them. ``shard`` makes the decisions, and ``records``
declares their form in ``__diskless_metadata``. ``store`` materialises the whole state in SQLite.
"""
