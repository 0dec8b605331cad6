"""Processed items, and reads that change nothing: history, counters, replay, dead letters.

``pages`` reads history page by page: start there. ``replay`` pushes processed items again, with the help of
``copying``; ``dead_letters`` hands dead letters back. ``read`` and ``stats`` read queues without changing them.
"""
