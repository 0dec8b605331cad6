# Generated from mongoq/core/history/read.py by scripts/unasync.py. Do not edit.
"""Reads without changes: get, peek, sizes, next due time, and the names of the queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from mongoq.core.base.find import prefix_filter
from mongoq.core.command import Command
from mongoq.core.history.read import (
    MAX_CONTROL_DOCUMENTS,
    NOT_RESERVED,
    Counts,
    M,
    Selection,
    count_states,
    counts_of,
    in_state,
)
from mongoq.core.sequence.hold import NOT_IN_ORDER
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads.base.bootstrap import ensure_broker_ready
from mongoq.core_threads.base.find import find_few, find_one
from mongoq.core_threads.base.queue_settings import ensure_ready
from mongoq.core_threads.perform import perform
from mongoq.core_threads.sequence.hold import delete_placed, find_heads, find_letters
from mongoq.data.arguments import Id, count, object_id
from mongoq.data.encoding.codec import UnreadableDocument
from mongoq.data.indexes import BEGINNING, CLAIM_ORDER, HISTORY_ORDER, SEQUENCE_ORDER
from mongoq.data.item import Hop, Item, trail_of
from mongoq.data.sequence import HAS_PLACE, blocked_filter, control_id


def get(context: QueueContext[M], id: Id) -> Item[M] | None:
    """Find one item of the queue by its id, live or in history (``find`` by ``_id``)."""
    filter = {"_id": object_id(id), "q": context.name, "payload": {"$exists": True}}
    ensure_broker_ready(context.broker, write=False)
    document = find_one(context.broker, filter, lenient=True)
    return None if document is None else context.item(document, context.broker.clock.now())


def trail(broker: BrokerContext, id: Id) -> tuple[Hop, ...] | None:
    """Read the trail of an item in any queue (``find`` by ``_id``); ``None`` when the item does not exist."""
    filter = {"_id": object_id(id), "payload": {"$exists": True}}
    ensure_broker_ready(broker, write=False)
    document = find_one(broker, filter, {"trail": 1}, lenient=True)
    return None if document is None else trail_of(document.get("trail"))


def peek(context: QueueContext[M], n: int, state: Selection) -> list[Item[M]]:
    """Read the first ``n`` items of a state in the order of claims (``find`` over the index)."""
    count(n, "n")
    ensure_broker_ready(context.broker, write=False)
    now = context.broker.clock.now()
    sort = {"processed": HISTORY_ORDER, "blocked": SEQUENCE_ORDER}.get(str(state), CLAIM_ORDER)
    filter, wanted = in_state(context.name, state, now), n
    while True:
        documents = find_few(context.broker, filter, sort, wanted, lenient=True)
        unreadable = sum(isinstance(document, UnreadableDocument) for document in documents)
        if len(documents) < wanted or len(documents) - unreadable >= n:
            return context.items(documents, now)[:n]
        # More documents, to replace the ones that cannot be decoded.
        wanted = n + unreadable


def size(context: QueueContext[Any], state: Selection) -> int:
    """Count the items in a state, in time proportional to the live items (``aggregate``)."""
    ensure_broker_ready(context.broker, write=False)
    filter = in_state(context.name, state, context.broker.clock.now())
    return perform(Command("count_documents", {"filter": filter}))


def counts(context: QueueContext[Any], limit: int | None) -> Counts:
    """Count the live items by state in one ``aggregate`` that reads at most ``limit`` of them."""
    if limit is not None:
        count(limit, "limit")
    broker = context.broker
    ensure_broker_ready(broker, write=False)
    now = broker.clock.now()
    command = count_states(broker, in_state(context.name, None, now), blocked_filter(context.name), now, limit=limit)
    groups: list[Any] = perform(command)
    counted = counts_of(groups)
    if not broker.serverless:
        return counted
    blocked: int = perform(Command("count_documents", {"filter": blocked_filter(context.name)}))
    return replace(counted, blocked=blocked)


def blocked_by(context: QueueContext[M], id: Id) -> list[Item[M]]:
    """Read the items that a blocked item waits for: letters that hold its sequence, and first items.

    Three or four ``find``.
    """
    filter = {"_id": object_id(id), **blocked_filter(context.name)}
    ensure_broker_ready(context.broker, write=False)
    document = find_one(context.broker, filter, {"sequence": 1, "place": 1})
    if document is None:
        return []
    control = find_one(context.broker, {"_id": control_id(context.name, document["sequence"])})
    if control is None:
        return []
    letters = find_letters(context.broker, [control])
    heads = find_heads(context.broker, context.name, control["sequence"], control["open"])
    documents = [*letters.get(control["_id"], ()), *heads]
    return context.items(documents, context.broker.clock.now())


def remove(context: QueueContext[Any], id: Id) -> bool:
    """Delete one item unless a caller holds it (``delete`` by ``_id``); its id is forgotten too.

    An item that others wait for goes in a transaction, in which the next one follows.
    """
    filter: dict[str, Any] = {"_id": object_id(id), "q": context.name}
    ensure_ready(context)
    filter["$or"] = [{"reserved": NOT_RESERVED}, {"when": {"$lte": context.broker.clock.now()}}]
    alone = {"filter": {**filter, **NOT_IN_ORDER}}
    is_deleted: bool = perform(Command("delete_one", alone, lambda reply: bool(reply.deleted_count)))
    return is_deleted or (delete_placed(context, filter)) > 0


def read_controls(
    broker: BrokerContext,
    prefix: str,
    fields: Iterable[str],
    *,
    names: Iterable[str] | None = None,
    where: Mapping[str, Any] | None = None,
) -> dict[str, Mapping[str, Any]]:
    """Read the control documents of one kind (``find``), all or the named ones, by what follows the prefix."""
    which = prefix_filter(prefix) if names is None else {"_id": {"$in": [prefix + name for name in names]}}
    projection = dict.fromkeys(("_id", *fields), 1)
    found = find_few(broker, {**which, **(where or {})}, [("_id", 1)], MAX_CONTROL_DOCUMENTS, projection=projection)
    return {document["_id"].removeprefix(prefix): document for document in found}


def queues(broker: BrokerContext) -> list[str]:
    """Return the names of queues that hold an item, live or in history."""
    ensure_broker_ready(broker, write=False)
    return sorted(find_queues({"$gte": ""}))


def find_queues(names: Mapping[str, Any]) -> set[Any]:
    """Find the queues with these names that hold an item, live or in history (three ``aggregate``).

    Each is a DISTINCT_SCAN. The ``distinct`` command would do as well, but it is not in the stable API. A queue whose
    sequences are all held may have blocked items alone.
    """
    queue_names: set[Any] = set()
    for field, condition in (("when", {"$gte": BEGINNING}), ("processed", {"$gte": BEGINNING}), ("place", HAS_PLACE)):
        stages = [{"$match": {"q": names, field: condition}}, {"$group": {"_id": "$q"}}]
        groups: Any = perform(Command("aggregate", {"pipeline": stages}))
        queue_names |= {group["_id"] for group in groups}
    return queue_names
