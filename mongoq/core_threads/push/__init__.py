# Generated from mongoq/core/push/__init__.py by scripts/unasync.py. Do not edit.
"""Pushes: one item, many items, or items for a topic; with keys, and with ids given by the producer.

``push`` makes drafts of pushes (``draft``), and sends them, alone or with those of other callers: start there.
``insert`` resolves lost replies of single items, and decides about a key that exists. ``publish`` takes items to their
sequences, and to the queues of a topic.
"""
