"""Commands that only read: queues, items, history and workers.

Start reading in ``queues``; ``item_document`` says how an item looks as JSON and as a row of a table.
"""
