"""Claims of items: each is one atomic command on the head of a queue, or one update of many.

``reserve`` claims one item: start there. ``reserve_many`` claims a batch, ``worker_claims`` claims for a worker,
``pop`` takes an item for good. ``read_ahead`` spares claims a read, ``filtering`` leaves out items that a consumer does
not take, and ``foreign`` buries documents that no claim can take.
"""
