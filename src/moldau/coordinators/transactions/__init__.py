"""Transaction coordinators, over ``__transaction_state``.

``shard.py`` makes the decisions, and ``transaction.py`` has the transitions of one transactional id.
``service.py`` handles requests, and ``completion.py`` writes the markers of ended transactions.
``producer_ids.py`` gets blocks of producer ids from the controller.
"""
