"""Claims of items: one atomic command on the head of a queue, or one update of many items under one token.

``reserve`` claims one item: start there. ``reserve_many`` is the path of all claims of many: it reads the first items
(``candidates``), reserves them by one update (``batch_claim``), and returns the items. ``filtering`` settles candidates
that a consumer does not take. ``pop`` takes an item for good, and ``foreign`` buries documents that no claim can take.
"""
