"""Pushes: one item, many items, or items for a topic; with keys, and with ids given by the producer.

``push`` sends one envelope: start there. ``draft`` checks a push and makes its envelope. ``insert`` sends envelopes and
resolves lost replies. ``keyed`` decides about a key that exists. ``push_many``, ``push_each`` and ``publish`` push many
items.
"""
