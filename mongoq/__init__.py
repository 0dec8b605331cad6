"""mongoq: durable queues, ETL pipelines and replayable history on the MongoDB that a team already runs."""

from importlib.metadata import PackageNotFoundError, version

from mongoq.aio import AsyncBroker, AsyncQueue
from mongoq.connection import connect, connect_async
from mongoq.errors import (
    ArgumentInvalid,
    AuthenticationFailed,
    BrokerClosed,
    CollectionSharded,
    CollectionUnsuitable,
    EmbeddedServerUnavailable,
    ItemForeign,
    MongoqError,
    PatchInvalid,
    PayloadInvalid,
    PayloadTooLarge,
    QueueNameInvalid,
    ReservationLost,
    SchemaTooNew,
    ServerUnavailable,
)
from mongoq.model.clock import VirtualClock
from mongoq.model.item import Failure, Item, Origin
from mongoq.protocol.read import Counts
from mongoq.sync import Broker, Queue

try:
    __version__ = version("mongoq-driver")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

__all__ = [
    "ArgumentInvalid",
    "AsyncBroker",
    "AsyncQueue",
    "AuthenticationFailed",
    "Broker",
    "BrokerClosed",
    "CollectionSharded",
    "CollectionUnsuitable",
    "Counts",
    "EmbeddedServerUnavailable",
    "Failure",
    "Item",
    "ItemForeign",
    "MongoqError",
    "Origin",
    "PatchInvalid",
    "PayloadInvalid",
    "PayloadTooLarge",
    "Queue",
    "QueueNameInvalid",
    "ReservationLost",
    "SchemaTooNew",
    "ServerUnavailable",
    "VirtualClock",
    "__version__",
    "connect",
    "connect_async",
]
