"""mongoq: durable queues, ETL pipelines and replayable history on the MongoDB that a team already runs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mongoq.aio import (
    AsyncBroker,
    AsyncDeadQueue,
    AsyncInspection,
    AsyncItemSelection,
    AsyncQueue,
    AsyncTransaction,
    BoundedCount,
    Counts,
    FailureGroup,
    ImportResult,
    QueueInsight,
    QueueStats,
    ReleasedSequence,
    StoredSettings,
    WorkerRecord,
)
from mongoq.connection import connect, connect_async
from mongoq.data.clock import VirtualClock
from mongoq.data.copies import SKIP, Replayed
from mongoq.data.item import Failure, Hop, Item, Origin
from mongoq.data.limits import PermitHolder, QueueLimits
from mongoq.data.outcomes import (
    Dead,
    Drop,
    Exponential,
    Fixed,
    Fork,
    Later,
    Linear,
    Move,
    Outcome,
    Record,
    Retry,
    RetryPolicy,
)
from mongoq.data.process import Health
from mongoq.data.schedule.definition import ScheduleRecord, Tick
from mongoq.data.settings import QueueSettings
from mongoq.errors import (
    ArgumentInvalid,
    AuthenticationFailed,
    BatchIncomplete,
    BrokerClosed,
    CollectionSharded,
    CollectionUnsuitable,
    ConsumerBusy,
    DuplicateItem,
    EmbeddedServerUnavailable,
    FilterInvalid,
    GraphInvalid,
    ItemForeign,
    MongoqError,
    OutcomeInvalid,
    PartnerMissing,
    PatchInvalid,
    PayloadInvalid,
    PayloadTooLarge,
    QueueNameInvalid,
    QueueNotEmpty,
    QueueUnknown,
    ReservationLost,
    ScheduleUnknown,
    SchemaTooNew,
    ServerUnavailable,
    StageStopped,
    TransactionsUnavailable,
)
from mongoq.idempotency import once, once_async
from mongoq.sync import Broker, DeadQueue, Inspection, ItemSelection, Queue, Transaction

if TYPE_CHECKING:
    from mongoq.pipeline import AsyncRun, Difference, Pipeline, Progress, Run, SourceProgress, StageProgress, Waiting
    from mongoq.worker import AsyncJob, AsyncWorker, Job, Worker

__version__ = "0.1.0.dev0"

_IMPORTED_LATER = {
    **dict.fromkeys(("AsyncJob", "AsyncWorker", "Job", "Worker"), "mongoq.worker"),
    **dict.fromkeys(("AsyncRun", "Difference", "Pipeline", "Progress", "Run"), "mongoq.pipeline"),
    **dict.fromkeys(("SourceProgress", "StageProgress", "Waiting"), "mongoq.pipeline"),
}
"""Names whose modules are imported at their first use: a program that only pushes starts a third sooner."""


if not TYPE_CHECKING:  # a type checker is to find names that do not exist

    def __getattr__(name: str) -> Any:
        if name not in _IMPORTED_LATER:
            raise AttributeError(f"module 'mongoq' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_IMPORTED_LATER[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_IMPORTED_LATER})


__all__ = [
    "SKIP",
    "ArgumentInvalid",
    "AsyncBroker",
    "AsyncDeadQueue",
    "AsyncInspection",
    "AsyncItemSelection",
    "AsyncJob",
    "AsyncQueue",
    "AsyncRun",
    "AsyncTransaction",
    "AsyncWorker",
    "AuthenticationFailed",
    "BatchIncomplete",
    "BoundedCount",
    "Broker",
    "BrokerClosed",
    "CollectionSharded",
    "CollectionUnsuitable",
    "ConsumerBusy",
    "Counts",
    "Dead",
    "DeadQueue",
    "Difference",
    "Drop",
    "DuplicateItem",
    "EmbeddedServerUnavailable",
    "Exponential",
    "Failure",
    "FailureGroup",
    "FilterInvalid",
    "Fixed",
    "Fork",
    "GraphInvalid",
    "Health",
    "Hop",
    "ImportResult",
    "Inspection",
    "Item",
    "ItemForeign",
    "ItemSelection",
    "Job",
    "Later",
    "Linear",
    "MongoqError",
    "Move",
    "Origin",
    "Outcome",
    "OutcomeInvalid",
    "PartnerMissing",
    "PatchInvalid",
    "PayloadInvalid",
    "PayloadTooLarge",
    "PermitHolder",
    "Pipeline",
    "Progress",
    "Queue",
    "QueueInsight",
    "QueueLimits",
    "QueueNameInvalid",
    "QueueNotEmpty",
    "QueueSettings",
    "QueueStats",
    "QueueUnknown",
    "Record",
    "ReleasedSequence",
    "Replayed",
    "ReservationLost",
    "Retry",
    "RetryPolicy",
    "Run",
    "ScheduleRecord",
    "ScheduleUnknown",
    "SchemaTooNew",
    "ServerUnavailable",
    "SourceProgress",
    "StageProgress",
    "StageStopped",
    "StoredSettings",
    "Tick",
    "Transaction",
    "TransactionsUnavailable",
    "VirtualClock",
    "Waiting",
    "Worker",
    "WorkerRecord",
    "__version__",
    "connect",
    "connect_async",
    "once",
    "once_async",
]
