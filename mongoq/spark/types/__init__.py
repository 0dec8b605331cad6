"""BSON values as Spark's types, and back: without loss, or not at all.

``column`` makes one column of a table: start there. ``convert`` reads values, ``values`` writes them, ``arrow`` and
``decimals`` make Arrow arrays, ``infer_types`` finds a type for values that were seen, and ``conversion_error`` names
one that does not fit.
"""
