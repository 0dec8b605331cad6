# Generated from mongoq/core/wait/__init__.py by scripts/unasync.py. Do not edit.
"""Waiting for an item: a caller asks once, and then again only when an event makes it worthwhile."""
