"""Reads by the ``find`` command itself: the driver's cursor around it takes longer than all of our own code.

This module also does the driver's part: a read whose reply was lost is sent again, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from bson.raw_bson import RawBSONDocument

from mongoq.model.encoding.codec import Encoding
from mongoq.model.item import Document
from mongoq.protocol.base.retry import retry_once
from mongoq.protocol.flow import Command, Flow, ReplyLost, Target, Unreadable
from mongoq.protocol.state.context import BrokerContext

__all__ = ["Head", "close_cursor", "find_few", "find_head", "find_one", "find_reply", "read_stored_batch"]

SERVER_FIRST_BATCH = 101
"""Documents in the server's first reply when the command sets no ``batchSize``."""

Order = list[tuple[str, int]]


def find_one(
    broker: BrokerContext,
    filter: Mapping[str, Any],
    projection: Mapping[str, Any] | None = None,
    *,
    lenient: bool = False,
) -> Flow[dict[str, Any] | None]:
    """Find the first matching document, or ``None`` (``find``).

    With ``lenient`` a document that cannot be decoded is returned as an ``UnreadableDocument``.
    """
    if broker.serverless:
        return (yield from Command("find_one", {"filter": filter, "projection": projection}))
    options: dict[str, Any] = {} if projection is None else {"projection": projection}
    find = {"filter": filter, "limit": 1, "singleBatch": True, **options}
    reply = yield from (_send_find_lenient if lenient else _send_find)(broker, find)
    return reply["firstBatch"][0] if reply["firstBatch"] else None


def find_few(
    broker: BrokerContext,
    filter: Mapping[str, Any],
    order: Order,
    limit: int,
    *,
    projection: Mapping[str, Any] | None = None,
    skip: int = 0,
    target: Target = "collection",
    lenient: bool = False,
) -> Flow[list[Document]]:
    """Find up to ``limit`` documents after ``skip`` others; ``target="history"`` reads with majority read concern.

    Results over 16 MB do not fit one reply: then the driver's cursor reads them in several. With ``lenient`` a document
    that cannot be decoded is returned as an ``UnreadableDocument``.
    """
    few = _find_few(broker, filter, order, limit, projection=projection, skip=skip, target=target)
    if not lenient:
        return (yield from few)
    try:
        return (yield from few)
    except Unreadable:
        find = {"filter": filter, "sort": dict(order), "projection": projection or {}}
        concern = {"readConcern": {"level": "majority"}} if target == "history" else {}
        return (yield from _find_few_lenient(broker, {**find, **concern}, skip, limit))


def _find_few(
    broker: BrokerContext,
    filter: Mapping[str, Any],
    order: Order,
    limit: int,
    *,
    projection: Mapping[str, Any] | None,
    skip: int,
    target: Target,
) -> Flow[list[Document]]:
    fields: dict[str, Any] = {} if projection is None else {"projection": projection}
    if skip:
        fields["skip"] = skip
    if not broker.serverless:
        options: dict[str, Any] = {"readConcern": {"level": "majority"}} if target == "history" else {}
        if limit > SERVER_FIRST_BATCH:  # the server sends fewer documents unless the command asks for more
            options["batchSize"] = limit
        cursor = yield from _send_find(
            broker, {"filter": filter, "sort": dict(order), "limit": limit, **fields, **options}
        )
        if not cursor["id"]:
            return cursor["firstBatch"]  # type: ignore[no-any-return]
        # The driver's cursor starts over; ours holds resources of the server until it is closed.
        yield from close_cursor(broker, cursor["id"])
    return (yield from Command("find", {"filter": filter, "sort": order, "limit": limit, **fields}, target=target))


def _find_few_lenient(broker: BrokerContext, find: dict[str, Any], skip: int, limit: int) -> Flow[list[Document]]:
    """Read as many documents at a time as one reply holds: no cursor of the driver decodes unreadable ones."""
    found: list[Document] = []
    while len(found) < limit:
        left = limit - len(found)
        cursor = yield from _send_find_lenient(
            broker, {**find, "skip": skip + len(found), "limit": left, "batchSize": left}
        )
        found += cursor["firstBatch"]
        if not cursor["id"] or not cursor["firstBatch"]:
            break
        yield from close_cursor(broker, cursor["id"])
    return found


def find_reply(
    broker: BrokerContext, filter: Mapping[str, Any], limit: int, projection: Mapping[str, Any]
) -> Flow[tuple[list[dict[str, Any]], bool]]:
    """Find up to ``limit`` documents in id order, with majority read concern; return them, and whether they are all.

    They are not all when they exceed the 16 MB of one reply.
    """
    find = {"filter": filter, "sort": {"_id": 1}, "limit": limit, "batchSize": limit, "projection": projection}
    cursor = yield from _send_find(broker, {**find, "readConcern": {"level": "majority"}})
    if cursor["id"]:
        yield from close_cursor(broker, cursor["id"])
    return cursor["firstBatch"], not cursor["id"]


class Head(NamedTuple):
    """The first documents that match a filter.

    Attributes:
        documents: the documents.
        size: their average size in bytes.
        cursor: the cursor's id; 0 unless one reply (16 MB) does not hold the documents.
    """

    documents: list[Document]
    size: int
    cursor: int


def find_head(broker: BrokerContext, filter: Mapping[str, Any], order: Order, limit: int) -> Command[Head]:
    """Return the command that finds the first ``limit`` documents."""
    find = {"filter": filter, "sort": dict(order), "limit": limit, "batchSize": limit}
    arguments = {"command": {"find": broker.collection, **find}, "codec_options": broker.encoding.undecoded}
    return Command("command", arguments, partial(_read_head, broker.encoding), target="database")


def _read_head(encoding: Encoding, reply: Any) -> Head:
    raw = reply["cursor"].raw
    (cursor,) = encoding.decode_many([raw])
    return Head(cursor["firstBatch"], len(raw) // max(len(cursor["firstBatch"]), 1), cursor["id"])


def read_stored_batch(cursor: RawBSONDocument) -> tuple[list[bytes], int]:
    """Return the documents of an undecoded cursor as bytes, and the cursor's id."""
    return [bytes(each.raw) for each in cursor["firstBatch"]], cursor["id"]


def close_cursor(broker: BrokerContext, cursor: int) -> Flow[None]:
    """Close a cursor (``killCursors``); if the command is lost, the server closes it after ten minutes."""
    kill = {"killCursors": broker.collection, "cursors": [cursor]}
    try:
        yield from Command("command", {"command": kill}, target="database")
    except ReplyLost:
        pass


def _send_find(broker: BrokerContext, find: dict[str, Any]) -> Flow[dict[str, Any]]:
    return (yield from retry_once(_find_command(broker, find)))


def _send_find_lenient(broker: BrokerContext, find: dict[str, Any]) -> Flow[dict[str, Any]]:
    """Send a ``find``; if a document of the reply cannot be decoded, send it again and decode each document alone."""
    try:
        return (yield from _send_find(broker, find))
    except Unreadable:
        arguments = {"command": {"find": broker.collection, **find}, "codec_options": broker.encoding.undecoded}
        reply = yield from retry_once(Command("command", arguments, _read_cursor, target="database"))
        documents, id = read_stored_batch(reply)
        return {"firstBatch": [broker.encoding.read(document) for document in documents], "id": id}


def _find_command(broker: BrokerContext, find: dict[str, Any]) -> Command[dict[str, Any]]:
    arguments = {"command": {"find": broker.collection, **find}, "codec_options": broker.encoding.options}
    return Command("command", arguments, _read_cursor, target="database")


def _read_cursor(reply: Any) -> Any:
    return reply["cursor"]
