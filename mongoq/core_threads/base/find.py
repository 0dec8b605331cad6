# Generated from mongoq/core/base/find.py by scripts/unasync.py. Do not edit.
"""Reads by the ``find`` command itself: the driver's cursor around it takes longer than all of our own code.

This module also does the driver's part: a read whose reply was lost is sent again, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mongoq.core.base.find import SERVER_FIRST_BATCH, Order, find_command, read_stored_batch
from mongoq.core.command import Command, ReplyLost, Target, Unreadable
from mongoq.core.state.context import BrokerContext
from mongoq.core_threads.base.retry import retry_once
from mongoq.core_threads.perform import perform
from mongoq.data.item import Document


def find_one(
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
        return perform(Command("find_one", {"filter": filter, "projection": projection}))
    find: dict[str, Any] = {"filter": filter, "limit": 1, "singleBatch": True}
    if projection is not None:
        find["projection"] = projection
    cursor = _send_find(broker, find, lenient=lenient)
    return cursor["firstBatch"][0] if cursor["firstBatch"] else None


def find_few(
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
            cursor = _send_find(broker, {**find, **size})
            if not cursor["id"]:
                return cursor["firstBatch"]  # type: ignore[no-any-return]
            # The driver's cursor starts over; ours holds resources of the server until it is closed.
            close_cursor(broker, cursor["id"])
        return perform(Command("find", {"filter": filter, "sort": order, "limit": limit, **fields}, target=target))
    except Unreadable:
        if not lenient:
            raise
    # No cursor of the driver decodes unreadable documents: read as many at a time as one reply holds.
    documents: list[Document] = []
    while len(documents) < limit:
        wanted = limit - len(documents)
        rest = {**find, "skip": skip + len(documents), "limit": wanted, "batchSize": wanted}
        cursor = _send_find(broker, rest, lenient=True)
        documents += cursor["firstBatch"]
        if not cursor["id"] or not cursor["firstBatch"]:
            break
        close_cursor(broker, cursor["id"])
    return documents


def find_reply(
    broker: BrokerContext, filter: Mapping[str, Any], limit: int, projection: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], bool]:
    """Find up to ``limit`` documents in id order, with majority read concern; return them, and whether they are all.

    They are not all when they exceed the 16 MB of one reply.
    """
    find = {"filter": filter, "sort": {"_id": 1}, "limit": limit, "batchSize": limit, "projection": projection}
    cursor = _send_find(broker, {**find, "readConcern": {"level": "majority"}})
    if cursor["id"]:
        close_cursor(broker, cursor["id"])
    return cursor["firstBatch"], not cursor["id"]


def close_cursor(broker: BrokerContext, cursor: int) -> None:
    """Close a cursor (``killCursors``); if the command is lost, the server closes it after ten minutes."""
    kill = {"killCursors": broker.collection, "cursors": [cursor]}
    try:
        perform(Command("command", {"command": kill}, target="database"))
    except ReplyLost:
        pass


def _send_find(broker: BrokerContext, find: dict[str, Any], *, lenient: bool = False) -> dict[str, Any]:
    command: Command[dict[str, Any]] = find_command(broker, find)
    try:
        return retry_once(command)
    except Unreadable:
        if not lenient:
            raise
        return find_undecoded(broker, command)


def find_undecoded(broker: BrokerContext, command: Command[Any]) -> dict[str, Any]:
    """Send a find command again, after a document of its reply could not be decoded, and decode each one alone."""
    arguments = {**command.arguments, "codec_options": broker.encoding.undecoded}
    documents, id = read_stored_batch(retry_once(replace(command, arguments=arguments)))
    return {"firstBatch": [broker.encoding.read(document) for document in documents], "id": id}


def aggregate_all(broker: BrokerContext, parts: Sequence[Sequence[Mapping[str, Any]]]) -> list[Any]:
    """Return the documents of several pipelines, joined to one by ``$unionWith`` (``aggregate``)."""
    if not parts:
        return []
    if broker.serverless:  # mongomock has no ``$unionWith``
        answers: list[Any] = []
        for part in parts:
            answers += perform(Command("aggregate", {"pipeline": [*part]}))
        return answers
    joined = [{"$unionWith": {"coll": broker.collection, "pipeline": part}} for part in parts[1:]]
    found: list[Any] = perform(Command("aggregate", {"pipeline": [*parts[0], *joined], "batchSize": 10 * len(parts)}))
    return found
