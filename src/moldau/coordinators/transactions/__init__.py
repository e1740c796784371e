"""Transaction coordinators, over ``__transaction_state``.

``shard.py`` decides, ``transitions.py`` has the legal moves of one transactional id, ``service.py`` answers
requests, ``completion.py`` has the markers of ended transactions written.
"""
