"""Queues and history read as tables: planned on the driver, read in the tasks.

``reader`` is what Spark calls: start there. ``plan`` splits a read into ranges, ``pushdown`` turns Spark's filters
into MongoDB's, ``schema`` makes record batches, and ``infer_schema`` finds the columns when nobody wrote them down.
"""
