"""Joins: items of several queues with a value in common become one item, in one transaction.

``join`` runs it: start there. ``spec`` says what a join goes by, ``match`` finds the partners of an item, ``pair``
makes one item of them, and ``expire`` settles items whose partners have not come in time.
"""
