"""Joins: items of several queues with a value in common become one item, in one transaction.

``join`` runs it, and settles items without partners after the timeout: start there. ``spec`` holds the settings of a
join and writes the results, ``match`` finds the partners of an item, and ``pair`` makes one item of them.
"""
