# Generated from mongoq/protocol/settle/__init__.py by scripts/unasync.py. Do not edit.
"""Operations of a reservation's holder: commit, roll back, move, bury, fork.

``settlement`` says what is sent for an item, and settles a single one: start there. ``settle``, ``move`` and ``bury``
make settlements. ``one`` sends that of a single item, alone or together with those of other callers (group commit),
``bulk`` those of many items, and ``in_order`` those that change a sequence, in a transaction. ``apply_outcomes`` maps
the outcomes of handlers to settlements; ``exchange`` settles and pushes in one transaction. ``by_token`` needs no
items, only ids and their fence.
"""
