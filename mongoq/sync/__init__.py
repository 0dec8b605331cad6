# Generated from mongoq/aio/__init__.py by scripts/unasync.py. Do not edit.
"""The sync API: thin classes that run the operations of ``mongoq.core``.

``scripts/unasync.py`` generates ``mongoq.sync`` from the asyncio classes.
"""

from mongoq.core.coordination.heartbeats import WorkerRecord
from mongoq.core.history.counters import QueueStats
from mongoq.core.history.dead_letters import FailureGroup, ReleasedSequence
from mongoq.core.history.query import BoundedCount
from mongoq.core.history.read import Counts
from mongoq.core.history.transfer import ImportResult
from mongoq.core.insight import QueueInsight, StoredSettings
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
