"""Pairs: the one item made from several, and the statements by which the originals leave their queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.errors import PayloadTooLarge
from mongoq.model.encoding.codec import SIZE_LIMIT
from mongoq.model.envelope import Document, join_headers, new_envelope
from mongoq.model.item import LARGE_PAYLOAD_BYTES, MAX_HOPS, Item, without_payloads
from mongoq.protocol.base.statements import Statement
from mongoq.protocol.settle.bury import burial_update
from mongoq.protocol.settle.settle import retention_update
from mongoq.protocol.settle.trail import Marker
from mongoq.protocol.state.context import QueueContext

PARKED_FIELDS = ("key", "parked")
"""Fields that an item has while it waits for its partners."""
MISSED_FIELD = "missed"
"""Field of a dead letter with partners that come late; handed back, the letter looks for them again."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One of the items that are joined.

    Attributes:
        context: queue that it arrived by.
        item: the stored item, in that queue even if it is parked by now.
        where: filter that finds the item as long as this process may take it.
    """

    context: QueueContext[Any]
    item: Item[Any]
    where: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """The item made from several: its envelope, and that envelope in the form to send."""

    document: Document
    raw: RawBSONDocument


def pair(queue: str, members: Sequence[Member | None], *, now: datetime, when: datetime) -> Pair:
    """Make one item of the members, in the order of the join's queues; ``None`` stands for a missing member.

    Raises:
        PayloadTooLarge: they do not fit one document.
    """
    there = [member for member in members if member is not None]
    encoding = there[0].context.broker.encoding
    headers = join_headers([member.item.headers for member in there])
    document = new_envelope(
        queue,
        [None if member is None else member.item.stored("payload") for member in members],
        id=ObjectId(),
        when=when,
        priority=min(priority_of(member.item) for member in there),
        headers=headers or None,
        once=None,
    )
    document["hops"] = 1 + max(member.item.hops for member in there)
    inputs = [{"id": member.item.id, "queue": member.item.queue, "hops": member.item.hops} for member in there]
    document["joined"] = {"queue": queue, "inputs": inputs}
    bare = encoding.raw(document)
    trail = _trail(queue, there, now)
    if trail:
        document["trail"] = trail if len(bare.raw) <= LARGE_PAYLOAD_BYTES else without_payloads(trail)
    raw = encoding.raw(document) if trail else bare
    if len(raw.raw) > SIZE_LIMIT:
        raise PayloadTooLarge(f"payload of {len(there)} items joined", len(raw.raw), SIZE_LIMIT)
    return Pair(document, raw)


def priority_of(item: Item[Any]) -> int:
    """Return the priority of an item; 0 if it is no int, since other programs may have written anything."""
    priority: Any = item.priority
    return priority if isinstance(priority, int) else 0


def _trail(queue: str, members: Sequence[Member], now: datetime) -> list[Any]:
    """Return the trails of all members as one, in the order of the events."""
    entries: list[Any] = []
    if not any(_is_recorded(member) for member in members):
        return entries
    for member in members:
        trail = member.item.stored("trail")
        own = {"trail": trail if isinstance(trail, list) else []}
        marks = Marker(member.context, "moved", at=now, to=queue).marks(member.item)
        entries += marks.in_document(own).get("trail", own["trail"])
    joined = [{**entry, "joined": True} if isinstance(entry, Mapping) else entry for entry in entries]
    return sorted(joined, key=_settlement_time)[-MAX_HOPS:]


def _is_recorded(member: Member) -> bool:
    mark = member.context.stage
    return (mark is not None and mark.trail) or member.item.stored("trail") is not None


def _settlement_time(entry: Any) -> float:
    at = entry.get("settled") if isinstance(entry, Mapping) else None
    return at.timestamp() if isinstance(at, datetime) else 0.0


def make_leave_statements(members: Iterable[Member], now: datetime) -> list[Statement]:
    """Return the statements by which items leave for good.

    They are deleted, or kept as history, or kept as ids to be remembered.
    """
    statements: list[Statement] = []
    groups: dict[Any, tuple[dict[str, Any], list[Any]]] = {}
    for member in members:
        update = retention_update(member.context, member.item, now, {})
        rest = {name: value for name, value in member.where.items() if name != "_id"}
        if update is None:
            groups.setdefault(repr(rest), (rest, []))[1].append(member.where["_id"])
        else:
            marked = Marker(member.context, "done", at=now).marks(member.item).on(update)
            statements.append(("UpdateOne", {"filter": member.where, "update": _in_its_queue(member, marked)}))
    statements += [("DeleteMany", {"filter": {"_id": {"$in": ids}, **rest}}) for rest, ids in groups.values()]
    return statements


def bury_statement(
    member: Member, now: datetime, *, reason: str | None, error: Exception | None, missed: bool = False
) -> Statement:
    """Return the statement that sends an item to the error queue, as if from the queue that it arrived by."""
    context, item = member.context, member.item
    update, marks = burial_update(context, item, reason=reason, error=error, attempts=item.attempts, now=now)
    marked = {**marks.on(update), "$unset": {**update["$unset"], "parked": ""}}
    if missed:
        marked["$set"] = {**marked["$set"], MISSED_FIELD: True}
    return "UpdateOne", {"filter": member.where, "update": marked}


def _in_its_queue(member: Member, update: dict[str, Any]) -> dict[str, Any]:
    """Return an update that leaves an item in its first queue, with its own key, not where it waited."""
    if member.item.stored("parked") is None:
        return update
    key = member.item.key
    changes = {**update["$set"], "q": member.item.queue, **({} if key is None else {"key": key})}
    unset_fields = {name: "" for name in PARKED_FIELDS if name not in changes}
    return {**update, "$set": changes, "$unset": {**update["$unset"], **unset_fields}}
