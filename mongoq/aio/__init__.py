"""The asyncio API: thin classes that run the operations of ``mongoq.core``.

``scripts/unasync.py`` generates ``mongoq.sync`` from the asyncio classes.
"""

from mongoq.aio.blocks import AsyncReserved, AsyncTransaction
from mongoq.aio.broker import AsyncBroker
from mongoq.aio.contents import AsyncItemSelection
from mongoq.aio.inspection import AsyncInspection
from mongoq.aio.queue import AsyncDeadQueue, AsyncQueue
from mongoq.core.coordination.heartbeats import WorkerRecord
from mongoq.core.history.counters import QueueStats
from mongoq.core.history.dead_letters import FailureGroup, ReleasedSequence
from mongoq.core.history.query import BoundedCount
from mongoq.core.history.read import Counts
from mongoq.core.history.transfer import ImportResult
from mongoq.core.insight import QueueInsight, StoredSettings

__all__ = [
    "AsyncBroker",
    "AsyncDeadQueue",
    "AsyncInspection",
    "AsyncItemSelection",
    "AsyncQueue",
    "AsyncReserved",
    "AsyncTransaction",
    "BoundedCount",
    "Counts",
    "FailureGroup",
    "ImportResult",
    "QueueInsight",
    "QueueStats",
    "ReleasedSequence",
    "StoredSettings",
    "WorkerRecord",
]
