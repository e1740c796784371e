"""The diskless coordinator (KIP-1164) assigns offsets to batches that are stored in objects.

``calls`` declares its requests, and ``service`` handles them. ``state/shard`` makes the decisions, and
``state/records`` declares the form of the decisions in ``__diskless_metadata``. ``store`` keeps the whole
state as tables in SQLite.
"""
