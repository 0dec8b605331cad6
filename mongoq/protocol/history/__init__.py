"""Processed items, and reads that change nothing: history, searches, counters, replay, dead letters.

``pages`` reads history page by page: start there; ``search`` looks for few items among many. ``replay`` pushes
processed items again, with the help of ``copying``; ``dead_letters`` hands dead letters back. ``read`` and ``stats``
read queues without changing them.
"""
