"""Transaction coordinators, over ``__transaction_state``.

``shard.py`` decides, ``transaction.py`` has the transitions of one transactional id, ``service.py`` answers
requests, and ``completion.py`` writes the markers of ended transactions.
"""
