"""Stages on Spark DataFrames: a streaming query for each of their queues, whose batches are settled item by item.

``queries`` starts them for a run, and ``query`` is one of them: start there. ``batches`` handles one batch: ``write``
calls the function, ``rows`` reads what its rows say of each item, ``settle`` settles them, and ``bisect`` finds the
item that failed.
"""
