# Generated from mongoq/core/history/query.py by scripts/unasync.py. Do not edit.
"""Queries: items of a queue in one state, filtered and in order; read, counted and deleted slice by slice.

Processed items come oldest first, live items in the order of claims, and blocked ones sequence by sequence. Pages go by
key, so no cursor stays open between them. A filter that no index answers would keep one command busy with the whole
queue or history: a search therefore reads slices. A slice is the next documents of an index, and only these are
compared with the filter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mongoq.core.base.find import find_command, read_stored_batch
from mongoq.core.command import Command, Unreadable
from mongoq.core.history.query import (
    BY_ID,
    PAGE,
    SLICE,
    BoundedCount,
    Progress,
    Query,
    lacks_index,
    open_document,
    refuse_filter,
)
from mongoq.core.history.read import NOT_RESERVED
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads.base.bootstrap import ensure_broker_ready
from mongoq.core_threads.base.find import close_cursor, find_few, find_undecoded
from mongoq.core_threads.base.retry import retry_once
from mongoq.core_threads.perform import perform
from mongoq.data.encoding.codec import UnreadableDocument
from mongoq.data.item import Document
from mongoq.errors import CollectionUnsuitable


def documents_page(
    context: QueueContext[Any], query: Query, *, fields: Mapping[str, int] | None = None
) -> tuple[list[Any], Query | None]:
    """Read the documents of one page, at most one reply of the server, and return the query of the rest.

    With ``fields`` only these are read, and with a server documents stay undecoded bytes. A page of a query by ids are
    the documents of the next ids, decoded.
    """
    broker = context.broker
    ensure_broker_ready(broker, write=False)
    query = replace(query, started=query.started or broker.clock.now())
    if query.ids is not None:
        ids, behind = query.ids[: query.page], query.ids[query.page :]
        named = replace(query, ids=ids).filter(context.name)
        documents = find_few(broker, named, query.order, len(ids), hint=BY_ID, target="history", lenient=True)
        return documents, replace(query, ids=behind) if behind else None
    filter, fields_alone = query.filter(context.name), {} if fields is None else {"projection": fields}
    if broker.serverless:
        arguments = {"filter": filter, "sort": query.order, "limit": query.page, **fields_alone}
        documents, cursor_id = perform(Command("find", arguments, target="history")), 0
    else:
        find = {"filter": filter, "sort": dict(query.order), "limit": query.page, "batchSize": query.page}
        find |= {**fields_alone, "readConcern": {"level": "majority"}}
        try:
            hint = {} if query.hint is None else {"hint": query.hint}
            documents, cursor_id = _read_reply(broker, {**find, **hint}, as_stored=fields is not None)
        except Exception as error:
            if query.hint is None or not lacks_index(error):
                refuse_filter(query.where, error)
                raise
            # A collection without the index holds few items.
            documents, cursor_id = _read_reply(broker, find, as_stored=fields is not None)
        if cursor_id:
            # A page of large items takes no more memory than one reply (16 MB).
            close_cursor(broker, cursor_id)
    if not cursor_id and len(documents) < query.page:
        return documents, None
    return documents, replace(query, after=open_document(broker, documents[-1]))


def _read_reply(broker: BrokerContext, find: dict[str, Any], *, as_stored: bool) -> tuple[list[Any], int]:
    """Return the documents of the server's first reply, and the id of the cursor for the others, 0 for none."""
    command = find_command(broker, find, as_stored=as_stored)
    try:
        cursor = retry_once(command)
        return read_stored_batch(cursor) if as_stored else (cursor["firstBatch"], cursor["id"])
    except Unreadable:
        cursor = find_undecoded(broker, command)
        return cursor["firstBatch"], cursor["id"]


def read_slice(context: QueueContext[Any], query: Query) -> tuple[list[Document], Query | None, int]:
    """Read the next matching documents of a query, a page of them at most, within one slice (two ``find``).

    Returns the documents, the query of the rest, ``None`` at the end, and how many documents it has passed, at most.
    There may be no documents although there is a rest. Without a filter, or by ids, there are no slices (one ``find``).
    """
    if query.ids is None and query.last is None and query.conditions(context.name):
        query = _cut_slice(context, query, SLICE)
    documents, rest = documents_page(context, query)
    if rest is None:
        return documents, query.behind_slice(), SLICE
    return documents, rest, len(documents)


def _cut_slice(context: QueueContext[Any], query: Query, examine: int) -> Query:
    """Return the query of the next slice, which has no ``last`` at the end.

    The end of the slice is read from the keys of the index alone (``find``). The slice is what lies before it, whatever
    comes or goes meanwhile: no item is met twice, and none that stays is passed over.
    """
    broker = context.broker
    ensure_broker_ready(broker, write=False)
    query = replace(query, started=query.started or broker.clock.now())
    options: dict[str, Any] = {"projection": query.key_fields, "hint": query.index.pattern, "target": "history"}
    keys = query.key_filter(context.name)
    try:
        ends = find_few(broker, keys, query.order, 2, skip=examine - 1, **options)
    except Exception as error:
        if lacks_index(error):
            problem = f"lacks the index {query.index.name}; run broker.ensure_indexes(), see 'mongoq doctor'"
            raise CollectionUnsuitable(broker.namespace, problem) from error
        raise
    return query if len(ends) < 2 else replace(query, last=ends[0])


def search(context: QueueContext[Any], query: Query, *, limit: int, progress: Progress | None = None) -> list[Document]:
    """Read the first ``limit`` matching documents of a query, slice by slice; undecodable ones come in addition.

    It reads to the end if there are fewer. ``progress`` is called after each page.
    """
    found, missing, examined = list[Document](), limit, 0
    rest: Query | None = query
    while missing > 0 and rest is not None:
        # Ids may be given in any order: the first one may be the last to come.
        page = PAGE if query.ids is not None else min(PAGE, missing)
        documents, rest, more = read_slice(context, replace(rest, page=page))
        found += documents
        missing -= sum(not isinstance(document, UnreadableDocument) for document in documents)
        examined += more
        if progress is not None:
            progress(examined)
    return found


def count_range(
    context: QueueContext[Any], query: Query, *, limit: int, progress: Progress | None = None
) -> BoundedCount:
    """Count the items of a query among the first ``limit`` items, slice by slice (``find`` and ``aggregate`` each).

    Without a filter, the server counts keys of the index (``aggregate``). ``progress`` is called after each slice.
    """
    ensure_broker_ready(context.broker, write=False)
    if not query.conditions(context.name):
        whole = replace(query, started=context.broker.clock.now()).filter(context.name)
        number: int = perform(Command("count_documents", {"filter": whole, "limit": limit + 1}))
        return BoundedCount(number, exact=number <= limit)
    number, examined, rest = 0, 0, query
    while examined < limit:
        size = min(SLICE, limit - examined)
        part = _cut_slice(context, rest, size)
        hint = {} if context.broker.serverless else {"hint": part.index.pattern}
        try:
            number += perform(Command("count_documents", {"filter": part.filter(context.name), **hint}))
        except Exception as error:
            refuse_filter(part.where, error)
            raise
        examined += size
        if progress is not None:
            progress(examined)
        behind = part.behind_slice()
        if behind is None:
            return BoundedCount(number)
        rest = behind
    return BoundedCount(number, exact=False)


def count_free(
    context: QueueContext[Any], query: Query, *, limit: int, progress: Progress | None = None
) -> BoundedCount:
    """Count the live items of a query that no caller holds, as ``count_range`` does.

    These are all due items and all blocked ones, which need no look at the documents, and the later ones that are not
    reserved. Items that are named by ids are counted by these.
    """
    ensure_broker_ready(context.broker, write=False)
    now, free = context.broker.clock.now(), BoundedCount()
    if query.ids is not None:
        for part in query.free(now).split(PAGE):
            number: int = perform(Command("count_documents", {"filter": part.filter(context.name)}))
            free += BoundedCount(number)
        return free
    later = replace(query, since=now).narrow({"reserved": NOT_RESERVED})
    for part in (replace(query, until=now), later, replace(query, state="blocked")):
        left = max(1, limit - free.number)
        free += count_range(context, part, limit=left, progress=progress)
        if not free.exact:
            break
    return free
