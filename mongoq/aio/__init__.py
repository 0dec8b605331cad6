"""The asyncio shells. ``mongoq.sync`` is generated from this package."""

from mongoq.aio.broker import AsyncBroker
from mongoq.aio.queue import AsyncQueue
from mongoq.aio.reserved import AsyncReserved

__all__ = ["AsyncBroker", "AsyncQueue", "AsyncReserved"]
