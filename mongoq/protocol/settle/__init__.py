"""Operations of a reservation's holder: commit, roll back, move, bury, fork.

``settlement`` says what is sent for an item, and settles a single one: start there. ``settle``, ``move`` and ``bury``
make settlements, and ``bulk`` sends those of many items. ``apply_outcomes`` maps the outcomes of handlers to
settlements; ``exchange`` settles and pushes in one transaction. ``by_token`` needs no items, only ids and their fence.
"""
