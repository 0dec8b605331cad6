"""Reads by the ``find`` command itself: the driver's cursor around it takes longer than all of our own code.

This module also does the driver's part: a read whose reply was lost is sent again, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

from bson.raw_bson import RawBSONDocument

from mongoq.core.base.retry import retry_once
from mongoq.core.command import Command, ReplyLost, Target, Unreadable
from mongoq.core.perform import perform
from mongoq.core.state.context import BrokerContext
from mongoq.data.item import Document

SERVER_FIRST_BATCH = 101
"""Documents in the server's first reply when the command sets no ``batchSize``."""

Order = list[tuple[str, int]]


async def find_one(
    broker: BrokerContext,
    filter: Mapping[str, Any],
    projection: Mapping[str, Any] | None = None,
    *,
    lenient: bool = False,
) -> dict[str, Any] | None:
    """Find the first matching document, or ``None`` (``find``).

    With ``lenient`` a document that cannot be decoded is returned as an ``UnreadableDocument``.
    """
    if broker.serverless:
        return await perform(Command("find_one", {"filter": filter, "projection": projection}))
    find: dict[str, Any] = {"filter": filter, "limit": 1, "singleBatch": True}
    if projection is not None:
        find["projection"] = projection
    cursor = await _send_find(broker, find, lenient=lenient)
    return cursor["firstBatch"][0] if cursor["firstBatch"] else None


async def find_few(
    broker: BrokerContext,
    filter: Mapping[str, Any],
    order: Order,
    limit: int,
    *,
    projection: Mapping[str, Any] | None = None,
    skip: int = 0,
    hint: Mapping[str, int] | None = None,
    target: Target = "collection",
    lenient: bool = False,
) -> list[Document]:
    """Find up to ``limit`` documents after ``skip`` others; ``target="history"`` reads with majority read concern.

    Results over 16 MB do not fit one reply: then the driver's cursor reads them in several. With ``lenient`` a document
    that cannot be decoded is returned as an ``UnreadableDocument``.
    """
    fields: dict[str, Any] = {} if projection is None else {"projection": projection}
    if skip:
        fields["skip"] = skip
    if hint is not None and not broker.serverless:
        fields["hint"] = hint
    options: dict[str, Any] = {"readConcern": {"level": "majority"}} if target == "history" else {}
    find = {"filter": filter, "sort": dict(order), "limit": limit, **fields, **options}
    try:
        if not broker.serverless:
            # The server sends fewer documents in its first reply unless the command asks for more.
            size = {"batchSize": limit} if limit > SERVER_FIRST_BATCH else {}
            cursor = await _send_find(broker, {**find, **size})
            if not cursor["id"]:
                return cursor["firstBatch"]  # type: ignore[no-any-return]
            # The driver's cursor starts over; ours holds resources of the server until it is closed.
            await close_cursor(broker, cursor["id"])
        return await perform(
            Command("find", {"filter": filter, "sort": order, "limit": limit, **fields}, target=target)
        )
    except Unreadable:
        if not lenient:
            raise
    # No cursor of the driver decodes unreadable documents: read as many at a time as one reply holds.
    documents: list[Document] = []
    while len(documents) < limit:
        wanted = limit - len(documents)
        rest = {**find, "skip": skip + len(documents), "limit": wanted, "batchSize": wanted}
        cursor = await _send_find(broker, rest, lenient=True)
        documents += cursor["firstBatch"]
        if not cursor["id"] or not cursor["firstBatch"]:
            break
        await close_cursor(broker, cursor["id"])
    return documents


async def find_reply(
    broker: BrokerContext, filter: Mapping[str, Any], limit: int, projection: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], bool]:
    """Find up to ``limit`` documents in id order, with majority read concern; return them, and whether they are all.

    They are not all when they exceed the 16 MB of one reply.
    """
    find = {"filter": filter, "sort": {"_id": 1}, "limit": limit, "batchSize": limit, "projection": projection}
    cursor = await _send_find(broker, {**find, "readConcern": {"level": "majority"}})
    if cursor["id"]:
        await close_cursor(broker, cursor["id"])
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

    def read(reply: Any) -> Head:
        raw = reply["cursor"].raw
        (cursor,) = broker.encoding.decode_many([raw])
        return Head(cursor["firstBatch"], len(raw) // max(len(cursor["firstBatch"]), 1), cursor["id"])

    return Command("command", arguments, read, target="database")


def read_stored_batch(cursor: RawBSONDocument) -> tuple[list[bytes], int]:
    """Return the documents of an undecoded cursor as bytes, and the cursor's id."""
    return [bytes(each.raw) for each in cursor["firstBatch"]], cursor["id"]


async def close_cursor(broker: BrokerContext, cursor: int) -> None:
    """Close a cursor (``killCursors``); if the command is lost, the server closes it after ten minutes."""
    kill = {"killCursors": broker.collection, "cursors": [cursor]}
    try:
        await perform(Command("command", {"command": kill}, target="database"))
    except ReplyLost:
        pass


async def _send_find(broker: BrokerContext, find: dict[str, Any], *, lenient: bool = False) -> dict[str, Any]:
    command: Command[dict[str, Any]] = find_command(broker, find)
    try:
        return await retry_once(command)
    except Unreadable:
        if not lenient:
            raise
        return await find_undecoded(broker, command)


def find_command(broker: BrokerContext, find: dict[str, Any], *, as_stored: bool = False) -> Command[Any]:
    """Return the command that finds a cursor; with ``as_stored`` its documents stay undecoded bytes."""
    options = broker.encoding.undecoded if as_stored else broker.encoding.options
    arguments = {"command": {"find": broker.collection, **find}, "codec_options": options}
    return Command("command", arguments, itemgetter("cursor"), target="database")


async def find_undecoded(broker: BrokerContext, command: Command[Any]) -> dict[str, Any]:
    """Send a find command again, after a document of its reply could not be decoded, and decode each one alone."""
    arguments = {**command.arguments, "codec_options": broker.encoding.undecoded}
    documents, id = read_stored_batch(await retry_once(replace(command, arguments=arguments)))
    return {"firstBatch": [broker.encoding.read(document) for document in documents], "id": id}


def prefix_filter(prefix: str) -> dict[str, Any]:
    """Return the filter of control documents of one kind, by the prefix of their ``_id`` up to a colon."""
    # The upper bound is the prefix with the character after its colon, so that the index on ``_id`` answers the query.
    return {"_id": {"$gte": prefix, "$lt": prefix[:-1] + chr(ord(":") + 1)}}


async def aggregate_all(broker: BrokerContext, parts: Sequence[Sequence[Mapping[str, Any]]]) -> list[Any]:
    """Return the documents of several pipelines, joined to one by ``$unionWith`` (``aggregate``)."""
    if not parts:
        return []
    if broker.serverless:  # mongomock has no ``$unionWith``
        answers: list[Any] = []
        for part in parts:
            answers += await perform(Command("aggregate", {"pipeline": [*part]}))
        return answers
    joined = [{"$unionWith": {"coll": broker.collection, "pipeline": part}} for part in parts[1:]]
    found: list[Any] = await perform(
        Command("aggregate", {"pipeline": [*parts[0], *joined], "batchSize": 10 * len(parts)})
    )
    return found
