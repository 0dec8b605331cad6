"""Control documents that processes coordinate by: leases of sources and streams, heartbeats, limits, schedules.

``document_lease`` is the fenced lease of one control document: start there. ``sources`` pushes the records of a source
together with its position; ``streams`` keeps the numbered claims of a reader of a queue; ``heartbeats`` lists the live
workers; ``limits`` has the permits and starts of queues; ``schedules`` makes ticks; ``repairs`` mends sequences.
"""
