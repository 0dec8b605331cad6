# Generated from mongoq/protocol/join/__init__.py by scripts/unasync.py. Do not edit.
"""Joins: items of several queues with a value in common become one item, in one transaction.

``join`` settles arriving items, and items without partners after the timeout: start there. ``match`` holds the settings
of a join, and finds the partners of an item.
"""
