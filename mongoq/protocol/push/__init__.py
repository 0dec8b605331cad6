"""Items into queues: one, many, into a topic; with keys, and with ids that were pushed before.

``push`` sends one envelope: start there. ``draft`` checks and makes envelopes, ``insert`` sends them and finds out
what became of a lost reply, ``keyed`` decides about a key that exists. ``push_many``, ``push_each`` and ``publish``
push many.
"""
