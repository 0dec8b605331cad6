"""Items that were processed, and items that are only looked at: history, counters, replay, dead letters.

``pages`` reads history page by page: start there. ``replay`` pushes processed items again, by way of ``copying``;
``dead_letters`` hands dead letters back. ``read`` and ``stats`` look at queues without changing them.
"""
