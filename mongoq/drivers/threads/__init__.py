# Generated from mongoq/drivers/aio/__init__.py by scripts/unasync.py. Do not edit.
"""The driver for asyncio; ``scripts/unasync.py`` generates ``mongoq.drivers.threads`` from it."""
