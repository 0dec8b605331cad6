# Generated from mongoq/aio/__init__.py by scripts/unasync.py. Do not edit.
"""The sync API: thin classes that run the operations of ``mongoq.core``.

``scripts/unasync.py`` generates ``mongoq.sync`` from the asyncio classes.
"""

from mongoq.sync.blocks import Reserved, Transaction
from mongoq.sync.broker import Broker
from mongoq.sync.contents import ItemSelection
from mongoq.sync.inspection import Inspection
from mongoq.sync.queue import DeadQueue, Queue

__all__ = [
    "Broker",
    "DeadQueue",
    "Inspection",
    "ItemSelection",
    "Queue",
    "Reserved",
    "Transaction",
]
