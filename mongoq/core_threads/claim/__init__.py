# Generated from mongoq/core/claim/__init__.py by scripts/unasync.py. Do not edit.
"""Claims of items: one atomic command on the head of a queue, or one update of many items under one token.

``reserve`` claims for callers, one item or many: start there. A claim of many reads the first items and reserves
them by one update (``batch_claim``). ``judge`` decides which of the claimed items may not run. Workers
claim by ``worker_claims``. ``pop`` takes an item for good.
"""
