# Generated from mongoq/core/history/__init__.py by scripts/unasync.py. Do not edit.
"""Processed items, and reads that change nothing: history, searches, counters, replay, dead letters.

``query`` reads, counts and deletes items page by page and slice by slice: start there. ``replay`` pushes processed
items again; ``dead_letters`` hands dead letters back. ``read`` and ``counters`` read queues without changing them;
``transfer`` exports and imports items; ``mistaken`` explains why a replay or a name found nothing.
"""
