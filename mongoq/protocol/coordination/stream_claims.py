"""Items of a stream's claim: many batches of ids, reserved one after the other under one token.

Notes on the claim of a stream: the place of its finished output, written once the output is complete. A note is part
of its claim: the next claim has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.model.envelope import Document
from mongoq.model.item import Item
from mongoq.model.stream_claim import stream_id
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import find_one
from mongoq.protocol.base.retry import retry_until_reply
from mongoq.protocol.claim.batch_claim import BatchClaim, send_claim
from mongoq.protocol.claim.candidates import Candidates, read_ids
from mongoq.protocol.claim.reserve import claim_one, make_marks
from mongoq.protocol.flow import IDS, Command, Flow, has_matched
from mongoq.protocol.state.context import BrokerContext, QueueContext

__all__ = ["ClaimNotes", "StreamClaimer", "read_notes", "write_note"]


@dataclass(frozen=True, slots=True)
class ClaimNotes:
    """Notes that are stored with a claim.

    Attributes:
        note: text of the note; ``None`` without one.
        others: ids of the claim that are not ObjectIds: other programs made them.
    """

    note: str | None = None
    others: tuple[Any, ...] = ()


def write_note(broker: BrokerContext, consumer: str, token: ObjectId, text: str) -> Flow[bool]:
    """Write a note on the claim with this token (``update``), and return whether the consumer still has that claim."""
    yield from ensure_broker_ready(broker, write=True)
    filter, update = _claim_filter(consumer, token), {"$set": {"claim.note": text}}
    command = Command("update_one", {"filter": filter, "update": update}, has_matched, resolved=True)
    found = yield from retry_until_reply(command)
    return bool(found)


def read_notes(broker: BrokerContext, consumer: str, token: ObjectId) -> Flow[ClaimNotes]:
    """Read the notes of the claim with this token (``find``); empty when the consumer has another claim or none."""
    yield from ensure_broker_ready(broker, write=False)
    found = yield from find_one(broker, _claim_filter(consumer, token), {"claim.note": 1, "claim.others": 1})
    if found is None:
        return ClaimNotes()
    return ClaimNotes(found["claim"].get("note"), tuple(found["claim"].get("others", ())))


def _claim_filter(consumer: str, token: ObjectId) -> dict[str, Any]:
    return {"_id": stream_id(consumer), "claim.token": token}


FIELDS = {"once": 1}
"""Projection of the reserved items: this field besides their ids."""


class StreamClaimer:
    """Reserves up to ``n`` items that are eligible, or were eligible at the time ``due``.

    As in any batch, an item without runs left is buried. An item whose last run was in a batch gets one more run, in a
    batch of its own, since a neighbour may have caused the failure.
    """

    def __init__(self, context: QueueContext[Any], n: int, lease: timedelta, due: datetime | None) -> None:
        now = context.broker.clock.now()
        self._mine = make_marks(context, now, lease)
        self.token, self.until = self._mine["token"], self._mine["when"]
        self._lease = lease
        self._now = now if due is None else min(now, due)
        self._context = context
        self._n = n
        self._due = due
        self._first: list[Document] | None = None
        self._items: list[Item[Any]] = []

    @property
    def first_due(self) -> datetime:
        """Time from which the first of the found items was eligible; the claim's own time when there are none."""
        dues = [document["when"] for document in self._first or ()]
        return min(dues, default=self._now)

    def find_first(self) -> Flow[bool]:
        """Find the first items without reserving them (``find``), and return whether there are any."""
        if not self._context.state.paused:
            self._first = yield from read_ids(self._context, self._size, due=self._due)
        return self._first is not None

    @property
    def _size(self) -> int:
        return min(IDS, self._n - len(self._items))

    def reserve(self) -> Flow[list[Item[Any]]]:
        """Reserve (``find``, ``update`` of many for 10,000 each), and return the items in the order of claims."""
        first, self._first = self._first, None
        while first is not None and not self._context.state.paused:
            size = self._size
            some = yield from self._reserve_batch(first)
            self._items += some
            # The control document has little room for ids that are not ObjectIds.
            is_odd = any(type(item.id) is not ObjectId for item in some)
            if self._items and (is_odd or len(some) < 2 or len(first) < size or not self._size):
                break
            first = yield from read_ids(self._context, self._size, due=self._due)
        return self._items

    def _reserve_batch(self, first: list[Document]) -> Flow[list[Item[Any]]]:
        if not first:
            return (yield from self._reserve_single())
        candidates, beside = Candidates(documents=first), bool(self._items)
        claim = BatchClaim(
            self._context, candidates, self._mine, self._now, adds_to_token=beside, writes_entry_time=True
        )
        return (yield from send_claim(claim, len(first), projection=FIELDS))

    def _reserve_single(self) -> Flow[list[Item[Any]]]:
        """Reserve one document with fields of odd types, written by another program; no batch can hold it."""
        if self._items:
            return []
        one = yield from claim_one(self._context, self._lease)
        if one is None:
            return []
        filter = {"_id": one.id, "token": one.token}
        mine = {**self._mine, "pushed": one.due}
        # ``claim_one`` reserves under a token of its own; the item is put under the token of the claim here.
        kept = yield from Command("update_one", {"filter": filter, "update": {"$set": mine}}, has_matched)
        return [one] if kept else []
