"""What the holder of a reservation does with its items: commit, roll back, move, bury, fork.

``settle`` settles one item in one fenced command: start there. ``settle_many`` and ``move_many`` check many, and
``bulk`` sends them. ``apply_outcomes`` maps what handlers return to what is sent; ``exchange`` settles and pushes in
one transaction.
"""
