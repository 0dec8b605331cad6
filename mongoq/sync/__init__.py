# Generated from mongoq/aio/__init__.py by scripts/unasync.py. Do not edit.
"""The asyncio shells. ``mongoq.sync`` is generated from this package."""

from mongoq.sync.broker import Broker
from mongoq.sync.queue import DeadQueue, Queue
from mongoq.sync.reserved import Reserved
from mongoq.sync.transaction import Transaction

__all__ = ["Broker", "DeadQueue", "Queue", "Reserved", "Transaction"]
