"""Sequences: items with the same ``sequence`` are handed out in the order of their pushes, one at a time.

Start with ``places``: how an item gets its place, how the next one follows the one that has left, and how a worker gets
it without a claim. ``hold`` has dead letters that hold their sequences, deletions and repairs. They run in the
transaction of the write that they belong to; without a server, one command follows the other.
"""
