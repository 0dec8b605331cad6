"""What operations share: indexes and clock, settings of queues, reads by ``find``, the fence, transactions, topics.

``fence`` is the heart: an update or delete that only the holder of a reservation can make, and what is known when its
reply was lost. ``bootstrap`` runs before the first command of a broker. ``first_due`` finds the head of a queue.
"""
