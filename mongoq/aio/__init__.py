"""The asyncio shells. ``mongoq.sync`` is generated from this package."""

from mongoq.aio.broker import AsyncBroker
from mongoq.aio.queue import AsyncDeadQueue, AsyncQueue
from mongoq.aio.reserved import AsyncReserved
from mongoq.aio.transaction import AsyncTransaction

__all__ = ["AsyncBroker", "AsyncDeadQueue", "AsyncQueue", "AsyncReserved", "AsyncTransaction"]
