# Generated from mongoq/core/__init__.py by scripts/unasync.py. Do not edit.
"""What each operation sends to MongoDB: coroutines that perform commands. No driver; ``bson`` is allowed.

Commands pass ``perform``; a driver (``mongoq.drivers``) runs each operation of a caller. Start with ``push.push`` for
one push, ``claim.reserve`` for one reservation, and ``settle.settle`` for its commit. The packages are layers, lowest
first: command and perform, state, base, sequence, push and wait, settle, history, claim and join, coordination, admin
and insight.

``mongoq.core_threads`` is generated: it has what differs for threads, and imports the rest from here.
"""
