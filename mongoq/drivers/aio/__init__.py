"""The driver for asyncio; ``scripts/unasync.py`` generates ``mongoq.drivers.threads`` from it."""
