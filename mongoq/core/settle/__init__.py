"""Operations of a reservation's holder: commit, roll back, move, bury, fork.

``settlement`` says what is sent for an item: start there. ``settle`` and ``move`` make settlements, and
``apply_outcomes`` makes them of the outcomes of handlers. ``send`` sends them: alone, together with those of other
callers (group commit), in bulks, or in transactions (``exchange``). ``by_token`` needs no items, only ids and their
fence.
"""
