# Generated from mongoq/protocol/base/__init__.py by scripts/unasync.py. Do not edit.
"""Shared parts of all operations: indexes and clock, queue settings, ``find`` reads, the fence, transactions, topics.

``fence`` is the heart: an update or delete that only the holder of a reservation can make, and the rules for a lost
reply. ``bootstrap`` runs before the first command of a broker. ``first_due`` finds the head of a queue.
``retry`` has the policies by which commands are sent again.
"""
