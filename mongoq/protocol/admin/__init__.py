"""Deletion: items that match a filter, whole queues, and the control documents of unused queues.

``purge`` deletes items, ``drop_queue`` a queue with all its stored data, and ``expiry`` lets settings and counters of
idle queues expire by the TTL index.
"""
