"""Tables written to queues: rows that are pushed, and rows that settle a reservation.

``writer`` and ``stream_writer`` have the classes that Spark calls: start there. ``write_rows`` pushes or settles the
rows of one task; ``column_roles`` assigns a role to each column, and ``row_ids`` makes ids, so that a row that is
written again is pushed once.
"""
