"""The asyncio API: thin classes that run the operations of ``mongoq.core``.

``scripts/unasync.py`` generates ``mongoq.sync`` from the asyncio classes.
"""

from mongoq.aio.blocks import AsyncReserved, AsyncTransaction
from mongoq.aio.broker import AsyncBroker
from mongoq.aio.contents import AsyncItemSelection
from mongoq.aio.inspection import AsyncInspection
from mongoq.aio.queue import AsyncDeadQueue, AsyncQueue

__all__ = [
    "AsyncBroker",
    "AsyncDeadQueue",
    "AsyncInspection",
    "AsyncItemSelection",
    "AsyncQueue",
    "AsyncReserved",
    "AsyncTransaction",
]
