# Generated from mongoq/core/base/__init__.py by scripts/unasync.py. Do not edit.
"""Shared parts of all operations: indexes and clock, queue settings, ``find`` reads, transactions, topics.

``bootstrap`` runs before the first command of a broker. ``first_due`` finds the head of a queue. ``retry`` has the
policies by which commands are sent again.
"""
