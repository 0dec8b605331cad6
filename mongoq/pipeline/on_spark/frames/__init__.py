"""Stages on Spark DataFrames: one streaming query for each of their queues, whose batches are settled item by item.

``queries`` starts the queries of a run, and ``query`` is one query: start there. ``batches`` handles one batch:
``write`` calls the function, ``rows`` reads the outcomes in its rows, ``settle`` settles the items, and ``failures``
finds the item that failed.
"""
