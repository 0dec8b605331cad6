"""Marks: a pipeline stage's traces on the items that it settles, written in the same update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from mongoq.model.envelope import shorten, splice
from mongoq.model.item import (
    LARGE_PAYLOAD_BYTES,
    ClaimedPayload,
    Item,
    StageMark,
    is_countable,
    most_hops,
    without_payloads,
)
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


class Marker:
    """Makes the marks of items with the same end.

    A handle without a stage counts hops. It writes no trail, but clears one that leaves no room for a large payload.
    """

    def __init__(self, context: QueueContext[Any], ended: Ended, *, at: datetime, to: str | None = None) -> None:
        self._context = context
        self._mark = context.stage
        self._ended = ended
        self._at = at
        self._to = to
        self._shared: dict[Any, Marks] = {}
        self._entries: dict[Any, bytes] = {}

    def marks(
        self, item: Item[Any], *, payload: bytes | None = None, added: int = 0, attempts: int | None = None
    ) -> Marks:
        """Return the marks of an item.

        Args:
            item: as it was claimed.
            payload: its new payload, as ``{"payload": payload}`` in BSON.
            added: the most bytes that a patch adds to the present payload.
            attempts: the attempts that count, if not all.
        """
        mark = self._mark
        if mark is None and not added and (payload is None or len(payload) <= LARGE_PAYLOAD_BYTES):
            return self._hop(item)
        trail = item.stored("trail", EMPTY_TRAIL)
        cleared = without_payloads(trail) if _has_payloads(trail) and self._is_large(item, payload, added) else None
        if mark is None:
            hop = self._hop(item)
            return hop if cleared is None else Marks(hop.operators, {**hop.changes, "trail": cleared}, MAX_TRAIL_BYTES)
        if mark.trail and not isinstance(trail, list):
            cleared = []  # another program wrote it, and the server would not append to it
        if mark.keeps or cleared is not None:
            return self._make(mark, item, attempts, cleared, large=mark.keeps and self._is_large(item, payload, added))
        key = is_countable(item.stored("hops", 0)), mark.trail and (item.read_at, item.by, item.attempts, attempts)
        if key not in self._shared:
            self._shared[key] = self._make(mark, item, attempts, None)
        return self._shared[key]

    def _hop(self, item: Item[Any]) -> Marks:
        """Return the mark by which the next visit of a queue is another delivery."""
        if self._ended != "moved":
            return NO_MARKS
        if self._mark is None and item.queue != self._to:
            origin = item.stored("origin")
            if isinstance(origin, Mapping) and origin.get("queue") == self._to:
                return NO_MARKS  # a letter sent back is the same delivery, as after a replay
        return ANOTHER_HOP if is_countable(item.stored("hops", 0)) else FIRST_HOP

    def _is_large(self, item: Item[Any], payload: bytes | None, added: int) -> bool:
        """Return whether the item's next payload leaves no room for payloads in its trail."""
        if payload is not None:
            return len(payload) > LARGE_PAYLOAD_BYTES
        return added > 0 and self._payload_at_claim(item).size + added > LARGE_PAYLOAD_BYTES

    def _payload_at_claim(self, item: Item[Any]) -> ClaimedPayload:
        return item.kept or self._context.as_claimed(item.stored("payload"))

    def _make(
        self, mark: StageMark, item: Item[Any], attempts: int | None, cleared: list[Any] | None, *, large: bool = False
    ) -> Marks:
        """Return the marks of an item; with ``cleared``, the whole trail is written, and not only its new entry."""
        hop = self._hop(item)
        operators, changes = dict(hop.operators), dict(hop.changes)
        size = 0
        if mark.trail:
            keeps = mark.keeps and item.stored("payload", NO_MARKS) is not NO_MARKS  # or settled unseen
            payload = self._payload_at_claim(item).wrapped if keeps and not large else None
            bare = self._entry(mark, item, attempts, large=keeps and payload is None)
            entry = self._context.broker.encoding.of_bytes(bare if payload is None else splice(bare, payload))
            most, size = most_hops(bare), len(entry.raw)
            if cleared is None:
                operators["$push"] = {"trail": {"$each": [entry], "$slice": -most}}
            else:
                changes["trail"] = [*cleared, entry][-most:]
        elif cleared is not None:
            changes["trail"] = cleared
        return Marks(operators, changes, size + (0 if cleared is None else MAX_TRAIL_BYTES))

    def _entry(self, mark: StageMark, item: Item[Any], attempts: int | None, *, large: bool) -> bytes:
        """Return an entry of a trail in BSON, without its payload."""
        counted = item.attempts if attempts is None else attempts
        key = item.read_at, item.by, counted, large
        if key not in self._entries:
            entry: dict[str, Any] = {
                "queue": self._context.name,
                "stage": mark.name,
                "by": shorten(str(item.by), MAX_BY_BYTES),
                "taken": item.read_at,
                "settled": self._at,
                "attempts": counted,
                "ended": self._ended,
                **({} if self._to is None else {"to": self._to}),
                **({"large": True} if large else {}),
            }
            self._entries[key] = bytes(self._context.broker.encoding.raw(entry).raw)
        return self._entries[key]


def _has_payloads(trail: Any) -> bool:
    return isinstance(trail, list) and any(isinstance(entry, Mapping) and "payload" in entry for entry in trail)
