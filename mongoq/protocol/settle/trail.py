"""Marks: a pipeline stage's traces on the items that it settles, written in the same update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from mongoq.model.envelope import shorten, splice
from mongoq.model.item import LARGE_PAYLOAD_BYTES, ClaimedPayload, Item, is_countable, most_hops, without_payloads
from mongoq.protocol.state.context import QueueContext

Ended = Literal["moved", "done", "dead"]
MAX_BY_BYTES = 128
MAX_TRAIL_BYTES = 32 * 1024
"""More than a trail takes that has no payloads."""
EMPTY_TRAIL: list[Any] = []


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """Fields that a stage adds to items as it settles them; items with equal fields share an object.

    Attributes:
        operators: operators of the update other than ``$set``.
        changes: fields of ``$set``.
        size: maximum bytes of both.
    """

    operators: Mapping[str, Mapping[str, Any]]
    changes: Mapping[str, Any]
    size: int = 0

    def on(self, update: dict[str, Any]) -> dict[str, Any]:
        """Return the update with the marks added."""
        changes = {"$set": {**update["$set"], **self.changes}} if self.changes else {}
        return {**update, **self.operators, **changes}

    def in_document(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the marks as fields of a document that is written as a whole; a trail and nothing else."""
        appended = self.operators.get("$push", {}).get("trail")
        if appended is None:
            return dict(self.changes)
        return {"trail": [*document.get("trail", EMPTY_TRAIL), *appended["$each"]][appended["$slice"] :]}


NO_MARKS = Marks({}, {})
ANOTHER_HOP, FIRST_HOP = Marks({"$inc": {"hops": 1}}, {}), Marks({}, {"hops": 1})


def make_marks(
    context: QueueContext[Any],
    item: Item[Any],
    ended: Ended,
    *,
    at: datetime,
    to: str | None = None,
    payload: bytes | None = None,
    added: int = 0,
    attempts: int | None = None,
    known: dict[Any, Any] | None = None,
) -> Marks:
    """Return the marks of an item.

    A handle without a stage counts hops. It writes no trail, but clears one that leaves no room for a large payload.

    Args:
        context: the queue that it was claimed from.
        item: as it was claimed.
        ended: how it leaves the queue.
        at: time when it is settled.
        to: the queue that it goes to.
        payload: its new payload, as ``{"payload": payload}`` in BSON.
        added: the most bytes that a patch adds to the present payload.
        attempts: the attempts that count, if not all.
        known: what was made for other items of the same batch.
    """
    stage, hop = context.stage, _make_hop(context, item, ended, to)
    if stage is None and not added and (payload is None or len(payload) <= LARGE_PAYLOAD_BYTES):
        return hop
    known = {} if known is None else known
    trail = item.stored("trail", EMPTY_TRAIL)
    has_payloads = isinstance(trail, list) and any(isinstance(each, Mapping) and "payload" in each for each in trail)
    cleared = without_payloads(trail) if has_payloads and _is_large(context, item, payload, added) else None
    if stage is None:
        return hop if cleared is None else Marks(hop.operators, {**hop.changes, "trail": cleared}, MAX_TRAIL_BYTES)
    if stage.trail and not isinstance(trail, list):
        cleared = []  # another program wrote it, and the server would not append to it
    counted = item.attempts if attempts is None else attempts
    key = stage, ended, to, hop, stage.trail and (item.read_at, item.by, counted)
    is_shared = cleared is None and not stage.keeps
    if is_shared and key in known:
        return known[key]  # type: ignore[no-any-return]
    operators, changes = dict(hop.operators), dict(hop.changes)
    size = 0 if cleared is None else MAX_TRAIL_BYTES
    if stage.trail:
        keeps = stage.keeps and item.stored("payload", known) is not known  # or settled unseen
        has_room = keeps and not _is_large(context, item, payload, added)
        own = _claimed_payload(context, item).wrapped if has_room else None
        is_left_out = keeps and own is None
        bare = known.get(("entry", *key, is_left_out))
        if bare is None:
            fields = {
                "queue": context.name,
                "stage": stage.name,
                "by": shorten(str(item.by), MAX_BY_BYTES),
                "taken": item.read_at,
                "settled": at,
                "attempts": counted,
                "ended": ended,
                **({} if to is None else {"to": to}),
                **({"large": True} if is_left_out else {}),
            }
            bare = known["entry", *key, is_left_out] = bytes(context.broker.encoding.raw(fields).raw)
        entry = context.broker.encoding.of_bytes(bare if own is None else splice(bare, own))
        most = most_hops(bare)
        size += len(entry.raw)
        if cleared is None:
            operators["$push"] = {"trail": {"$each": [entry], "$slice": -most}}
        else:
            changes["trail"] = [*cleared, entry][-most:]
    elif cleared is not None:
        changes["trail"] = cleared
    marks = Marks(operators, changes, size)
    if is_shared:
        known[key] = marks
    return marks


def _is_large(context: QueueContext[Any], item: Item[Any], payload: bytes | None, added: int) -> bool:
    """Return whether the item's next payload leaves no room for payloads in its trail."""
    if payload is not None:
        return len(payload) > LARGE_PAYLOAD_BYTES
    return added > 0 and _claimed_payload(context, item).size + added > LARGE_PAYLOAD_BYTES


def _claimed_payload(context: QueueContext[Any], item: Item[Any]) -> ClaimedPayload:
    return item.kept or context.as_claimed(item.stored("payload"))


def _make_hop(context: QueueContext[Any], item: Item[Any], ended: Ended, to: str | None) -> Marks:
    """Return the mark by which the next visit of a queue is another delivery."""
    if ended != "moved":
        return NO_MARKS
    if context.stage is None and item.queue != to:
        origin = item.stored("origin")
        if isinstance(origin, Mapping) and origin.get("queue") == to:
            return NO_MARKS  # a letter sent back is the same delivery, as after a replay
    return ANOTHER_HOP if is_countable(item.stored("hops", 0)) else FIRST_HOP
