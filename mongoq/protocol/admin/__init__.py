"""Deleting: items that match a filter, whole queues, and the control documents of queues that nobody uses.

``purge`` deletes items, ``drop_queue`` a queue with all that is stored of it, and ``expiry`` lets settings and
counters of idle queues expire by the TTL index.
"""
