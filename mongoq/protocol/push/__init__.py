"""Pushes: one item, many items, or items for a topic; with keys, and with ids given by the producer.

``push`` checks a push, makes its envelope and sends it, alone or with those of other callers: start there. ``insert``
sends envelopes, resolves lost replies, and decides about a key that exists. ``push_many`` pushes many items, and
``publish`` copies one to the queues of a topic.
"""
