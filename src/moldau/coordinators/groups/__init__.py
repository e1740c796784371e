"""Classic consumer groups and committed offsets (``__consumer_offsets``).

``states``, ``member``, ``group``, ``joining``, ``syncing``, ``leaving``, ``offsets``, ``shard`` are pure.
Request handlers call ``service``.
"""
