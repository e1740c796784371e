"""Classic consumer groups and committed offsets (``__consumer_offsets``).

``states``, ``member``, ``group``, ``joining``, ``syncing``, ``leaving``, ``offsets``, ``shard`` are pure;
``service`` is what request handlers call.
"""
