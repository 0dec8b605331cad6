"""Queues and history read as tables: planned on the driver, read in the tasks.

``reader`` has the classes that Spark calls: start there. It splits a read into ranges. ``pushdown`` turns Spark's
filters into MongoDB's, ``schema`` makes record batches, and ``infer_schema`` finds the columns without a schema.
"""
