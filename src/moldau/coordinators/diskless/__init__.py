"""The diskless coordinator (KIP-1164) assigns offsets to batches that are stored in objects.

``calls`` declares its requests, and ``service`` handles them. ``state/shard`` makes the decisions.
``state/records`` declares the records of ``__diskless_metadata``, which contain the decisions. ``store``
keeps the whole state of a coordinator in SQLite tables.
"""
