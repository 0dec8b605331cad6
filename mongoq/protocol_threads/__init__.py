# Generated from mongoq/protocol/__init__.py by scripts/unasync.py. Do not edit.
"""What each operation sends to MongoDB: flows that yield commands. No I/O and no driver; ``bson`` is allowed.

A flow is a generator: it yields the commands of ``flow`` and receives their replies; a driver
(``mongoq.drivers``) runs it. Start with ``push.push`` for one push, ``claim.reserve`` for one reservation, and
``settle.settle`` for its commit. The packages are layers, lowest first: flow, state, base, push and wait, settle,
history, claim and join, coordination and group_commit, admin.
"""
