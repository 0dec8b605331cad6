"""BSON values as values of Spark's types, and back: without loss, or with an error.

``column`` makes one column of a table: start there. ``convert`` reads values, ``values`` writes them, ``arrow``
makes Arrow arrays, ``infer_types`` finds a type for observed values, and ``conversion_error`` describes a
value that does not fit.
"""
