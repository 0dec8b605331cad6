# Generated from mongoq/drivers/aio/__init__.py by scripts/unasync.py. Do not edit.
"""The driver; ``aio`` is the source of ``threads``."""
