"""BSON values as values of Spark's types, and back: without loss, or with an error.

``column`` makes one column of a table, as an Arrow array: start there. ``convert`` reads values, ``values`` writes
them, and ``envelope_columns`` has the columns that are not the payload's.
"""
