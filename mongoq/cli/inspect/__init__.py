"""Commands that only read: queues, items, history and workers.

Start reading in ``queues``; ``item_row`` says how an item looks in a table.
"""
