"""Backends: mongoq's handles of a collection, derived from the caller's, and the classification of driver errors.

Raw commands: writes sent as command documents, without the driver's layer for retryable writes. For a retry the server
keeps a record of each write, in a write of its own. An operation that resolves a lost reply by itself needs none: with
it a lone ``reserve`` takes 15 % longer, and a ``push_many`` under given ids 12 %. Other writes go by the driver's
methods, which send them again once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import bson
from bson import Code
from bson.codec_options import TypeRegistry
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteMany, DeleteOne, ReadPreference, UpdateMany, UpdateOne, WriteConcern
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.collection import Collection
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConnectionFailure,
    DuplicateKeyError,
    ExecutionTimeout,
    OperationFailure,
    ServerSelectionTimeoutError,
    WriteConcernError,
    WriteError,
)
from pymongo.read_concern import ReadConcern

from mongoq.core.command import (
    Blocked,
    Command,
    Duplicate,
    Interruption,
    PartlyRefused,
    Refused,
    ReplyLost,
    Target,
    Unreadable,
)
from mongoq.core.state.wait_queue import WaiterRegistry
from mongoq.data.encoding.codec import Options, codec_options
from mongoq.drivers.sessions import Sessions
from mongoq.errors import ArgumentInvalid


class ResetInChild(Protocol):
    """Object whose state a forked child must not use."""

    def forget(self) -> None: ...


_objects: WeakSet[ResetInChild] = WeakSet()


def register(resettable: ResetInChild) -> None:
    """Call ``forget`` of an object in every child that is forked while the object lives."""
    _objects.add(resettable)


def _after_fork() -> None:
    for resettable in list(_objects):
        resettable.forget()


os.register_at_fork(after_in_child=_after_fork)


UNSUITABLE_UPDATE_CODES = frozenset({2, 14, 15, 28, 40, 52, 57, 10334, 16554, 16837, 16840, 17419, 17420})
"""Server codes for an update that does not fit: wrong types, impossible paths, too deep or too large."""
MOTOR_AWAIT_SECONDS = 2.0
"""Seconds that the server may hold an answer back from a thread of Motor's."""
REPLY_LOST_CODES = frozenset({6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436})
"""Codes of a server that is no longer primary or is shutting down, and of a router without a server's reply."""

RETRYABLE_LABEL = "RetryableWriteError"
"""Label of a lost reply, with any code: another program may stand in front of the server."""

DUPLICATE_CODE = 11000
MAJORITY = {"w": "majority"}
KINDS = {
    "update_one": "UpdateOne",
    "update_many": "UpdateMany",
    "delete_one": "DeleteOne",
    "delete_many": "DeleteMany",
}
"""The driver's names of the statements that methods send."""
STATEMENT_TYPES = {kind.__name__: kind for kind in (DeleteMany, DeleteOne, UpdateMany, UpdateOne)}


@dataclass(frozen=True, slots=True)
class Backend:
    """Handles that commands are sent to.

    Attributes:
        targets: objects that have the methods of commands, by target name.
        sessions: sessions of the client; a target as well.
        client: client of the collection, for its topology; ``None`` for mongomock.
        options: codec options of values.
        undecoded: codec options of replies that stay raw bytes.
        serverless: True for mongomock, which keeps Python objects and takes no raw BSON.
        namespace: ``database.collection``.
    """

    targets: Mapping[Target, Any]
    sessions: Sessions
    client: Any
    options: Options
    undecoded: Options
    serverless: bool
    namespace: str

    def is_cut_off(self) -> bool:
        """Return whether the client sees no server that takes writes."""
        return self.client is not None and find_primary(self.client) is None


def decode(value: Any, options: Options) -> Any:
    """Return a value with its raw BSON decoded, for mongomock."""
    if isinstance(value, RawBSONDocument | Code):  # within a document, so that a reference comes out as one
        return bson.decode(bson.encode({"": value}), options)[""]
    if isinstance(value, Mapping):
        return {key: decode(part, options) for key, part in value.items()}
    if isinstance(value, list):
        return [decode(part, options) for part in value]
    return value


class RawReply(RawBSONDocument):
    """Document that stays raw bytes, to which the driver can add the labels of an error.

    The driver takes each ``writeConcernError`` for a dict. It adds the server's labels to it, by ``update`` or to a
    ``copy``, and sends the command again if they tell it to, as they do while a primary steps down.
    """

    labels: Mapping[str, Any] = MappingProxyType({})

    def update(self, labels: Mapping[str, Any]) -> None:
        """Add labels; the bytes stay."""
        self.labels = labels

    def copy(self) -> dict[str, Any]:
        """Return the fields."""
        return dict(self)

    def __getitem__(self, name: str) -> Any:
        """Return a field."""
        return self.labels[name] if name in self.labels else super().__getitem__(name)


class WriteReply(NamedTuple):
    """Result of an update or a delete, with the driver's own names; no operation reads the result of an insert."""

    matched_count: int
    deleted_count: int


def build_raw_command(command: Command[Any], collection: str) -> dict[str, Any] | None:
    """Return the command document for the server; ``None`` for a bulk of updates and deletes, which would be two."""
    method, arguments = command.method, command.arguments
    if method == "find_one_and_update":
        found: dict[str, Any] = {"findAndModify": collection, "query": arguments["filter"], "writeConcern": MAJORITY}
        if "sort" in arguments:
            found["sort"] = dict(arguments["sort"])
        if "maxTimeMS" in arguments:
            found["maxTimeMS"] = arguments["maxTimeMS"]
        return {**found, "update": arguments["update"], "new": False}
    options = {"ordered": arguments.get("ordered", True), "writeConcern": MAJORITY}
    if method == "insert_many":
        # The documents do not count among the 16 MiB of a command: the driver sends them behind it.
        return {"insert": collection, **options, "documents": arguments["documents"]}
    statements = arguments["requests"] if method == "bulk_write" else [(KINDS[method], arguments)]
    are_deletes = [kind.startswith("Delete") for kind, _ in statements]
    if any(are_deletes) and not all(are_deletes):
        return None
    if any(are_deletes):
        deletes = [{"q": each["filter"], "limit": 0 if kind == "DeleteMany" else 1} for kind, each in statements]
        return {"delete": collection, **options, "deletes": deletes}
    updates = [{"q": each["filter"], "u": each["update"], "multi": kind == "UpdateMany"} for kind, each in statements]
    return {"update": collection, **options, "updates": updates}


def parse_raw_reply(command: Command[Any], reply: Mapping[str, Any]) -> Any:
    """Return the result that the driver's method returns, or raise its error."""
    refused, unconfirmed = reply.get("writeErrors", []), reply.get("writeConcernError")
    if (refused or unconfirmed) and command.method in ("bulk_write", "insert_many"):
        name = "nInserted" if command.method == "insert_many" else "nRemoved" if _is_delete(command) else "nMatched"
        concerns = [unconfirmed] if unconfirmed else []
        raise BulkWriteError({"writeErrors": refused, "writeConcernErrors": concerns, name: reply["n"]})
    if unconfirmed:
        raise WriteConcernError(unconfirmed["errmsg"], unconfirmed["code"], unconfirmed)
    if refused:
        raise _make_refusal(refused[0])
    if command.method.startswith("find"):
        return reply["value"]
    if command.method.startswith("insert"):
        return None
    return WriteReply(0, reply["n"]) if _is_delete(command) else WriteReply(reply["n"], 0)


def _is_delete(command: Command[Any]) -> bool:
    if command.method == "bulk_write":
        return bool(command.arguments["requests"][0][0].startswith("Delete"))
    return command.method.startswith("delete")


def _make_refusal(failure: Mapping[str, Any]) -> WriteError:
    kind = DuplicateKeyError if failure["code"] == DUPLICATE_CODE else WriteError
    return kind(failure["errmsg"], failure["code"], failure)


def open_backend(collection: Any, *, asynchronous: bool) -> Backend:
    """Derive handles with primary reads, majority writes, aware dates and standard UUIDs.

    Secondary reads would break the read-back, ``w: 1`` the fence after a failover, ``w: 0`` the counts; other
    codec options of the caller are kept.

    Raises:
        TypeError: no collection, or one of the other kind (synchronous or asynchronous).
        ArgumentInvalid: its codec options have a type registry.
    """
    kind = type(collection).__module__.partition(".")[0]
    _check_kind(collection, kind, asynchronous)
    serverless = kind == "mongomock"
    registry = TypeRegistry() if serverless else collection.codec_options.type_registry
    if registry != TypeRegistry():
        raise ArgumentInvalid(
            "collection",
            f"its codec options have a type_registry, which would convert mongoq's own fields as well: "
            f"{registry!r:.300}; give collection.with_options(codec_options=CodecOptions()), and convert payloads with "
            "a model",
        )
    options = codec_options(None if serverless else collection.codec_options)
    own = collection.with_options(
        # mongomock keeps Python objects and knows no option but this one
        codec_options=bson.CodecOptions(tz_aware=True) if serverless else options,
        read_preference=ReadPreference.PRIMARY,
        write_concern=WriteConcern(w="majority"),
    )
    undecoded = options.with_options(document_class=RawReply)
    raw = own if serverless else own.with_options(codec_options=undecoded)
    majority = own if serverless else own.with_options(read_concern=ReadConcern("majority"))
    database = own.database if serverless else own.database.with_options(read_preference=ReadPreference.PRIMARY)
    client = None if serverless else own.database.client
    sessions = Sessions(client)
    return Backend(
        targets={"collection": own, "bytes": raw, "history": majority, "database": database, "sessions": sessions},
        sessions=sessions,
        client=client,
        options=options,
        undecoded=undecoded,
        serverless=serverless,
        namespace=f"{own.database.name}.{own.name}",
    )


def _check_kind(collection: Any, kind: str, asynchronous: bool) -> None:
    is_async = isinstance(collection, AsyncCollection) or kind == "motor"
    is_sync = isinstance(collection, Collection) or kind == "mongomock"
    if is_async if asynchronous else is_sync:
        return
    if asynchronous:
        wanted, other, connect = "a PyMongo AsyncCollection or a Motor", "Broker", "await mongoq.connect_async(uri)"
    else:
        wanted, other, connect = "a PyMongo Collection or a mongomock", "AsyncBroker", "mongoq.connect(uri)"
    hint = f"; {connect} makes a broker from a URI" if isinstance(collection, str) else ""
    if is_async or is_sync:
        hint = f"; use mongoq.{other} for it"
    name = f"{type(collection).__module__}.{type(collection).__qualname__}"
    raise TypeError(f"collection: {wanted} collection, not {name}{hint}")


def classify_error(error: Exception) -> Interruption | None:
    """Classify a driver error for operations; ``None`` for an error that passes through unchanged."""
    if isinstance(error, BulkWriteError):  # an unconfirmed write comes before refused statements
        refused = error.details["writeErrors"]
        if error.details.get("writeConcernErrors") or any(failure["code"] in REPLY_LOST_CODES for failure in refused):
            return ReplyLost(error)
        total = sum(
            error.details.get(name, 0) for name in ("nInserted", "nMatched", "nRemoved")
        )  # mongomock tells less
        refusals = {failure["index"]: _make_refusal(failure) for failure in refused}
        return PartlyRefused(error, {at: classify_error(each) or each for at, each in refusals.items()}, total)
    if isinstance(error, DuplicateKeyError):
        return Duplicate(error)
    if isinstance(error, WriteConcernError):
        return ReplyLost(error)
    if isinstance(error, ExecutionTimeout):
        return Blocked(error)
    if isinstance(error, AutoReconnect) and not isinstance(error, ServerSelectionTimeoutError):
        return ReplyLost(error)
    if isinstance(error, OperationFailure) and (
        error.code in REPLY_LOST_CODES or error.has_error_label(RETRYABLE_LABEL)
    ):
        return ReplyLost(error)
    if isinstance(error, OperationFailure) and error.code in UNSUITABLE_UPDATE_CODES:
        return Refused(error)
    if isinstance(error, InvalidBSON):
        return Unreadable(error)
    return None


def decode_details(error: Exception) -> Exception:
    """Return a server error with its details decoded: the text of an error with a raw reply quotes raw bytes."""
    if not isinstance(error, OperationFailure | AutoReconnect) or not isinstance(error.details, RawBSONDocument):
        return error
    details = bson.decode(bytes(error.details.raw))
    arguments: Any = (error.code, details) if isinstance(error, OperationFailure) else (details,)
    return type(error)(details.get("errmsg", ""), *arguments).with_traceback(error.__traceback__)


def is_outage(error: Exception) -> bool:
    """Return whether an error means that no server answers in time; a server may answer again in a moment."""
    return isinstance(error, ConnectionFailure) or isinstance(classify_error(error), ReplyLost | Blocked)


def find_primary(client: Any) -> Any:
    """Return the address of the primary as the client last saw it, without a command."""
    servers = client.topology_description.server_descriptions()
    return next((address for address, server in servers.items() if server.is_writable), None)


def limit_stream(registry: WaiterRegistry, client: Any) -> None:
    """Let the stream keep to the limits of a client: how many connections it has, and how long they wait."""
    if type(client).__module__.startswith("motor"):
        registry.patience = MOTOR_AWAIT_SECONDS  # its threads cannot be told to stop waiting
    try:
        pool, patience = client.options.pool_options, client.options.timeout
    except AttributeError:
        return
    registry.barred = pool.max_pool_size == 1  # everybody else would wait for the stream's answers
    for limit in (pool.socket_timeout, patience):
        if limit:
            registry.patience = min(registry.patience, limit / 2)
