"""Reads without changes: get, peek, sizes, next due time, and the names of the queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar, get_args

from mongoq.core.base.bootstrap import ensure_broker_ready
from mongoq.core.base.find import find_few, find_one, prefix_filter
from mongoq.core.base.queue_settings import ensure_ready
from mongoq.core.command import Command
from mongoq.core.perform import perform
from mongoq.core.sequence.hold import NOT_IN_ORDER, delete_placed, find_heads, find_letters
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.arguments import Id, count, object_id
from mongoq.data.encoding.codec import UnreadableDocument
from mongoq.data.indexes import BEGINNING, CLAIM_ORDER, HISTORY_ORDER, SEQUENCE_ORDER
from mongoq.data.item import Hop, Item, State, trail_of
from mongoq.data.sequence import HAS_PLACE, blocked_filter, control_id
from mongoq.errors import ArgumentInvalid

MAX_CONTROL_DOCUMENTS = 1_000_000
"""Control documents of one kind in one read, at most."""
M = TypeVar("M")
Selection = State | None
"""One state, or ``None`` for all items that are not processed."""


NOT_RESERVED = {"$ne": True}
"""Condition of an item without a reservation: documents of other programs may hold any value there, or none."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of a queue's items in each live state, counted in one pass."""

    ready: int = 0
    scheduled: int = 0
    reserved: int = 0
    expired: int = 0
    blocked: int = 0

    @property
    def total(self) -> int:
        """Number of all items that are not processed."""
        return self.ready + self.scheduled + self.reserved + self.expired + self.blocked


def in_state(queue: str, state: Any, now: datetime) -> dict[str, Any]:
    """Return the filter of a queue's items in a state; ``None`` means all live items."""
    if state is None:
        # The lower bound leaves out documents without ``when``, which are processed.
        return {"q": queue, "when": {"$gte": BEGINNING}}
    if state == "processed":
        return {"q": queue, "processed": {"$gte": BEGINNING}, "payload": {"$exists": True}}
    if state == "blocked":
        return blocked_filter(queue)
    if state not in get_args(State):
        raise ArgumentInvalid("state", f"one of {', '.join(get_args(State))} or None, not {state!r}")
    due = {"$lte": now} if state in ("ready", "expired") else {"$gt": now}
    return {"q": queue, "when": due, "reserved": True if state in ("reserved", "expired") else NOT_RESERVED}


async def get(context: QueueContext[M], id: Id) -> Item[M] | None:
    """Find one item of the queue by its id, live or in history (``find`` by ``_id``)."""
    filter = {"_id": object_id(id), "q": context.name, "payload": {"$exists": True}}
    await ensure_broker_ready(context.broker, write=False)
    document = await find_one(context.broker, filter, lenient=True)
    return None if document is None else context.item(document, context.broker.clock.now())


async def trail(broker: BrokerContext, id: Id) -> tuple[Hop, ...] | None:
    """Read the trail of an item in any queue (``find`` by ``_id``); ``None`` when the item does not exist."""
    filter = {"_id": object_id(id), "payload": {"$exists": True}}
    await ensure_broker_ready(broker, write=False)
    document = await find_one(broker, filter, {"trail": 1}, lenient=True)
    return None if document is None else trail_of(document.get("trail"))


async def peek(context: QueueContext[M], n: int, state: Selection) -> list[Item[M]]:
    """Read the first ``n`` items of a state in the order of claims (``find`` over the index)."""
    count(n, "n")
    await ensure_broker_ready(context.broker, write=False)
    now = context.broker.clock.now()
    sort = {"processed": HISTORY_ORDER, "blocked": SEQUENCE_ORDER}.get(str(state), CLAIM_ORDER)
    filter, wanted = in_state(context.name, state, now), n
    while True:
        documents = await find_few(context.broker, filter, sort, wanted, lenient=True)
        unreadable = sum(isinstance(document, UnreadableDocument) for document in documents)
        if len(documents) < wanted or len(documents) - unreadable >= n:
            return context.items(documents, now)[:n]
        # More documents, to replace the ones that cannot be decoded.
        wanted = n + unreadable


async def size(context: QueueContext[Any], state: Selection) -> int:
    """Count the items in a state, in time proportional to the live items (``aggregate``)."""
    await ensure_broker_ready(context.broker, write=False)
    filter = in_state(context.name, state, context.broker.clock.now())
    return await perform(Command("count_documents", {"filter": filter}))


async def counts(context: QueueContext[Any], limit: int | None) -> Counts:
    """Count the live items by state in one ``aggregate`` that reads at most ``limit`` of them."""
    if limit is not None:
        count(limit, "limit")
    broker = context.broker
    await ensure_broker_ready(broker, write=False)
    now = broker.clock.now()
    command = count_states(broker, in_state(context.name, None, now), blocked_filter(context.name), now, limit=limit)
    groups: list[Any] = await perform(command)
    counted = counts_of(groups)
    if not broker.serverless:
        return counted
    blocked: int = await perform(Command("count_documents", {"filter": blocked_filter(context.name)}))
    return replace(counted, blocked=blocked)


def count_states(
    broker: BrokerContext,
    live: Mapping[str, Any],
    blocked: Mapping[str, Any],
    now: datetime,
    *,
    limit: int | None = None,
    by_queue: bool = False,
) -> Command[list[Any]]:
    """Return the ``aggregate`` that counts items by state, and on request by queue too, with the first date of each.

    Blocked items come by ``$unionWith``, from an index of their own; mongomock has no such stage and leaves them out.
    """
    queue, totals = ({"q": "$q"} if by_queue else {}), {"n": {"$sum": 1}, "first": {"$min": "$when"}}
    # At the beginning as well: behind other stages the server would read a batch of megabytes before it.
    ends: list[Mapping[str, Any]] = [] if limit is None else [{"$limit": limit}]
    waiting = [{"$match": blocked}, *ends, {"$project": {"_id": 0, "q": 1, "blocked": {"$literal": True}}}]
    pipeline: list[Mapping[str, Any]] = [
        {"$match": live},
        *ends,
        {"$project": {"q": 1, "when": 1, "reserved": {"$eq": ["$reserved", True]}, "due": {"$lte": ["$when", now]}}},
        *([] if broker.serverless else [{"$unionWith": {"coll": broker.collection, "pipeline": waiting}}]),
        *ends,
        {"$group": {"_id": {"reserved": "$reserved", "due": "$due", "blocked": "$blocked", **queue}, **totals}},
    ]
    return Command("aggregate", {"pipeline": pipeline})


def counts_of(groups: Iterable[Mapping[str, Any]]) -> Counts:
    """Return the counts of one queue from the groups that ``count_states`` found."""
    names = {(False, True): "ready", (False, False): "scheduled", (True, False): "reserved", (True, True): "expired"}
    numbers = {
        "blocked" if group["_id"].get("blocked") else names[group["_id"]["reserved"], group["_id"]["due"]]: group["n"]
        for group in groups
    }
    return Counts(**numbers)


async def blocked_by(context: QueueContext[M], id: Id) -> list[Item[M]]:
    """Read the items that a blocked item waits for: letters that hold its sequence, and first items.

    Three or four ``find``.
    """
    filter = {"_id": object_id(id), **blocked_filter(context.name)}
    await ensure_broker_ready(context.broker, write=False)
    document = await find_one(context.broker, filter, {"sequence": 1, "place": 1})
    if document is None:
        return []
    control = await find_one(context.broker, {"_id": control_id(context.name, document["sequence"])})
    if control is None:
        return []
    letters = await find_letters(context.broker, [control])
    heads = await find_heads(context.broker, context.name, control["sequence"], control["open"])
    documents = [*letters.get(control["_id"], ()), *heads]
    return context.items(documents, context.broker.clock.now())


async def remove(context: QueueContext[Any], id: Id) -> bool:
    """Delete one item unless a caller holds it (``delete`` by ``_id``); its id is forgotten too.

    An item that others wait for goes in a transaction, in which the next one follows.
    """
    filter: dict[str, Any] = {"_id": object_id(id), "q": context.name}
    await ensure_ready(context)
    filter["$or"] = [{"reserved": NOT_RESERVED}, {"when": {"$lte": context.broker.clock.now()}}]
    alone = {"filter": {**filter, **NOT_IN_ORDER}}
    is_deleted: bool = await perform(Command("delete_one", alone, lambda reply: bool(reply.deleted_count)))
    return is_deleted or (await delete_placed(context, filter)) > 0


async def read_controls(
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
    found = await find_few(
        broker, {**which, **(where or {})}, [("_id", 1)], MAX_CONTROL_DOCUMENTS, projection=projection
    )
    return {document["_id"].removeprefix(prefix): document for document in found}


async def queues(broker: BrokerContext) -> list[str]:
    """Return the names of queues that hold an item, live or in history."""
    await ensure_broker_ready(broker, write=False)
    return sorted(await find_queues({"$gte": ""}))


async def find_queues(names: Mapping[str, Any]) -> set[Any]:
    """Find the queues with these names that hold an item, live or in history (three ``aggregate``).

    Each is a DISTINCT_SCAN. The ``distinct`` command would do as well, but it is not in the stable API. A queue whose
    sequences are all held may have blocked items alone.
    """
    queue_names: set[Any] = set()
    for field, condition in (("when", {"$gte": BEGINNING}), ("processed", {"$gte": BEGINNING}), ("place", HAS_PLACE)):
        stages = [{"$match": {"q": names, field: condition}}, {"$group": {"_id": "$q"}}]
        groups: Any = await perform(Command("aggregate", {"pipeline": stages}))
        queue_names |= {group["_id"] for group in groups}
    return queue_names
