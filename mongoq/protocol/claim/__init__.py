"""Items out of queues: each claim is one atomic command on the head of a queue, or one update of many.

``reserve`` claims one item: start there. ``reserve_many`` claims a batch, ``worker_claims`` what a worker runs,
``pop`` takes an item for good. ``read_ahead`` spares claims a read, ``filtering`` leaves out what a consumer does not
take, and ``foreign`` buries documents that no claim can take.
"""
