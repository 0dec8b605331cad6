# Generated from mongoq/telemetry/aio/__init__.py by scripts/unasync.py. Do not edit.
"""The observed operations: ``operations`` for asyncio, from which those for threads are generated."""
