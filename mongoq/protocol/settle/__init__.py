"""Operations of a reservation's holder: commit, roll back, move, bury, fork.

``settle`` settles one item in one fenced command: start there. ``settle_many`` and ``move_many`` check many items, and
``bulk`` sends them. ``apply_outcomes`` maps the outcomes of handlers to commands; ``exchange`` settles and pushes in
one transaction.
"""
