"""Consumer groups and committed offsets (``__consumer_offsets``).

``shard``, the classic protocol in ``classic/`` and the committed offsets in ``offsets/`` are pure. Request
handlers call ``service``.
"""
