"""Streams: a queue, or its history, as micro-batches that come again unchanged after a crash.

``queue_stream`` and ``history_stream`` have the classes that Spark calls: start there. ``queue_run`` holds the claims
of a query in the driver's process, extends their leases, and gives them back when the query ends.
"""
