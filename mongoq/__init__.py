"""mongoq: durable queues, ETL pipelines and replayable history on the MongoDB that a team already runs."""

from importlib.metadata import PackageNotFoundError, version

from mongoq.aio import AsyncBroker, AsyncDeadQueue, AsyncQueue, AsyncTransaction
from mongoq.connection import connect, connect_async
from mongoq.errors import (
    ArgumentInvalid,
    AuthenticationFailed,
    BatchIncomplete,
    BrokerClosed,
    CollectionSharded,
    CollectionUnsuitable,
    DuplicateItem,
    EmbeddedServerUnavailable,
    FilterInvalid,
    ItemForeign,
    MongoqError,
    PatchInvalid,
    PayloadInvalid,
    PayloadTooLarge,
    QueueNameInvalid,
    ReservationLost,
    SchemaTooNew,
    ServerUnavailable,
    TransactionsUnavailable,
)
from mongoq.model.clock import VirtualClock
from mongoq.model.item import Failure, Item, Origin
from mongoq.model.outcomes import Move
from mongoq.model.replayed import SKIP, Replayed
from mongoq.model.settings import QueueSettings
from mongoq.protocol.read import Counts
from mongoq.protocol.stats import QueueStats
from mongoq.sync import Broker, DeadQueue, Queue, Transaction

try:
    __version__ = version("mongoq-driver")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

__all__ = [
    "SKIP",
    "ArgumentInvalid",
    "AsyncBroker",
    "AsyncDeadQueue",
    "AsyncQueue",
    "AsyncTransaction",
    "AuthenticationFailed",
    "BatchIncomplete",
    "Broker",
    "BrokerClosed",
    "CollectionSharded",
    "CollectionUnsuitable",
    "Counts",
    "DeadQueue",
    "DuplicateItem",
    "EmbeddedServerUnavailable",
    "Failure",
    "FilterInvalid",
    "Item",
    "ItemForeign",
    "MongoqError",
    "Move",
    "Origin",
    "PatchInvalid",
    "PayloadInvalid",
    "PayloadTooLarge",
    "Queue",
    "QueueNameInvalid",
    "QueueSettings",
    "QueueStats",
    "Replayed",
    "ReservationLost",
    "SchemaTooNew",
    "ServerUnavailable",
    "Transaction",
    "TransactionsUnavailable",
    "VirtualClock",
    "__version__",
    "connect",
    "connect_async",
]
