"""Streams: readers of a queue in numbered batches under a consumer's name, and the items of the last batch.

All of it is in one control document, ``stream:CONSUMER``: ``token``, ``until`` and ``by`` are the lease of the run,
``queue`` is the queue that it reads, ``number`` is that of the last claim, and ``claim`` is that claim until it is
settled. There is one claim at a time: the next one is made when the last one is settled.

A claim is written twice: before its items are reserved, with their token and the end of their lease, by which they are
found and given back after a crash; and afterwards, with their ids. Only then does the caller learn of it. All writes
happen under the lease of the run, so a process that has lost the lease cannot make a claim that another process reads.

Notes on a claim: the place of its finished output, written once the output is complete. The next claim has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.errors import ArgumentInvalid
from mongoq.model.envelope import Document
from mongoq.model.item import Item, has_place
from mongoq.model.sequence import HAS_PLACE
from mongoq.model.stream_claim import StreamClaim, consumer_name, stream_id
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import find_few, find_one
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.retry import retry_until_reply
from mongoq.protocol.claim.batch_claim import BatchClaim, send_claim
from mongoq.protocol.claim.candidates import Candidates, read_ids
from mongoq.protocol.claim.reservation import make_marks
from mongoq.protocol.claim.reserve import claim_one
from mongoq.protocol.coordination.document_lease import (
    DocumentLease,
    ForeignLease,
    TakenOver,
    extend_lease,
    give_back,
    take_lease,
    write_under_lease,
)
from mongoq.protocol.flow import MAX_COMMAND_ITEMS, Command, Flow, delete_many, has_matched
from mongoq.protocol.sequence.control import run_atomic
from mongoq.protocol.sequence.leave import leave
from mongoq.protocol.sequence.promotion import Promoted, record_promoted
from mongoq.protocol.settle.by_token import cut_ids, update_many_command
from mongoq.protocol.settle.settle import release_update, retention_update
from mongoq.protocol.state.context import BrokerContext, QueueContext

__all__ = [
    "ClaimNotes",
    "ForeignLease",
    "StreamRun",
    "TakenOver",
    "extend_lease",
    "give_back",
    "next_claim",
    "open_run",
    "read_notes",
    "release_consumer",
    "server_time",
    "settle_claim",
    "take_up_claim",
    "write_note",
]


RESERVED_ITEM_FIELDS = {"once": 1, "start_by": 1, "sequence": 1, "place": 1}
"""Projection of the reserved items: these fields besides their ids."""
ITEMS_PER_TRANSACTION = 1_000
"""Items of sequences that are committed in one transaction, at most."""


@dataclass(slots=True)
class StreamRun(DocumentLease):
    """One run of a consumer, as its process knows it.

    Attributes:
        consumer: name of the consumer.
        queue: name of the queue that it reads.
        number: number of the last claim that a caller has seen; it grows with each claim.
        claim: claim that is not settled yet; ``None`` when there is none.
    """

    consumer: str
    queue: str
    number: int
    claim: StreamClaim | None = None


def server_time(broker: BrokerContext) -> Flow[datetime]:
    """Return the server's time."""
    yield from ensure_broker_ready(broker, write=True)
    return broker.clock.now()


def open_run(broker: BrokerContext, consumer: str, queue: str, length: timedelta) -> Flow[StreamRun | ForeignLease]:
    """Begin a run (``findAndModify``, upsert), or return the lease of the consumer's run that is under way.

    The new run inherits the items that the last run claimed and did not settle. A crash afterwards leaves the run begun
    until its lease ends.

    Raises:
        ArgumentInvalid: the consumer holds items of another queue.
    """
    begin = yield from take_lease(broker, stream_id(consumer), length, {"queue": queue, "number": 0})
    if isinstance(begin, ForeignLease):
        return begin
    token, document = begin
    claim = StreamClaim.of(document["claim"]) if "claim" in document else None
    run = StreamRun(stream_id(consumer), token, length, consumer, document["queue"], document["number"], claim)
    yield from _clear_claim(broker, run)
    if run.queue != queue:
        yield from _change_queue(broker, run, queue)
    return run


def _change_queue(broker: BrokerContext, run: StreamRun, queue: str) -> Flow[None]:
    if run.claim is not None:
        # The lease was taken to read the claim. Without this the consumer would be blocked until the lease ends.
        yield from give_back(broker, run)
        problem = f"{run.consumer!r} still holds items of queue {run.queue!r}; let its query end, give them back by "
        raise ArgumentInvalid("consumer", f"{problem}broker.release_claims({run.consumer!r}), or choose another name")
    yield from write_under_lease(broker, run, {"$set": {"queue": queue}})
    run.queue = queue


def _clear_claim(broker: BrokerContext, run: StreamRun) -> Flow[None]:
    """Give back the items of an unfinished claim, left by a crash or an error: no caller has seen them."""
    if run.claim is not None and run.claim.ids is None:
        yield from _give_up(broker, run.queue, run.claim)
        yield from write_under_lease(broker, run, {"$unset": {"claim": ""}})
        run.claim = None


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
        return min(MAX_COMMAND_ITEMS, self._n - len(self._items))

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
        return (yield from send_claim(claim, projection=RESERVED_ITEM_FIELDS))

    def _reserve_single(self) -> Flow[list[Item[Any]]]:
        """Reserve one document with fields of odd types, written by another program; no batch can hold it."""
        if self._items:
            return []
        item = yield from claim_one(self._context, self._lease)
        if item is None:
            return []
        filter = {"_id": item.id, "token": item.token}
        mine = {**self._mine, "pushed": item.due}
        # ``claim_one`` reserves under a token of its own; the item is put under the token of the claim here.
        claimed = yield from Command("update_one", {"filter": filter, "update": {"$set": mine}}, has_matched)
        return [item] if claimed else []


def next_claim(
    context: QueueContext[Any],
    run: StreamRun,
    n: int,
    lease: timedelta | None,
    *,
    after: int,
    due: datetime | None = None,
) -> Flow[StreamClaim | None]:
    """Claim up to ``n`` items for the next batch; ``None`` when none is eligible, or was at the time ``due``.

    Finds ids by the index, writes the claim with its token, reserves (``update`` of many, each 10,000), writes the ids.
    A consumer has one claim at most, so the last one must be settled. A crash before the end leaves items that the next
    run gives back, the attempt not counted.

    Args:
        context: the queue.
        run: the run, under whose lease this happens.
        n: number of items, at most.
        lease: duration of the items' reservation; ``None`` for the queue's own.
        after: number of the last claim that the caller knows of.
        due: claim items that were eligible at this time.

    Raises:
        TakenOver: the lease of the run is lost.
    """
    yield from ensure_ready(context)
    yield from _clear_claim(context.broker, run)
    taking = StreamClaimer(context, n, lease or context.settings.lease, due)
    if not (yield from taking.find_first()):
        return None
    intent = StreamClaim(max(run.number, after) + 1, taking.token, taking.until, taking.first_due)
    run.claim = intent
    # Written before the items are reserved: after a crash the next run finds them by this token and gives them back.
    yield from write_under_lease(context.broker, run, {"$set": {"claim": intent.document()}})
    items = yield from taking.reserve()
    if not items:
        yield from _clear_claim(context.broker, run)
        return None
    # Ids that are not ObjectIds come last, as in the stored form.
    ids = sorted((item.id for item in items), key=lambda id: type(id) is not ObjectId)
    remembers, in_order = any(item.once is not None for item in items), any(map(has_place, items))
    claim = replace(intent, ids=ids, remembers=remembers, in_order=in_order)
    change = {"claim": claim.document(), "number": claim.number}
    yield from write_under_lease(context.broker, run, {"$set": change})
    run.claim, run.number = claim, claim.number
    context.count("reserve", len(items))
    return claim


def take_up_claim(broker: BrokerContext, run: StreamRun, *, after: int) -> Flow[StreamClaim | None]:
    """Return the claim that is not settled yet, if any, with a number after the caller's (``update``)."""
    claim = run.claim
    if claim is None or claim.ids is None:
        return None
    if claim.number <= after:
        claim = replace(claim, number=after + 1)
        yield from write_under_lease(broker, run, {"$set": {"claim.number": claim.number, "number": claim.number}})
        run.claim, run.number = claim, claim.number
    return claim


def settle_claim(context: QueueContext[Any], run: StreamRun, number: int) -> Flow[int]:
    """Commit the items that the claim of this number still holds (``delete`` or ``update`` of many); return how many.

    Items that were moved, committed or lost since stay as they are. Does nothing when the claim of this number is gone.
    Items with a place in a sequence are committed in transactions of up to 1,000, in which the next ones follow. A
    crash in between leaves the rest to the next call.

    Raises:
        TakenOver: the lease of the run is lost; all items were committed before.
    """
    claim = run.claim
    if claim is None or claim.ids is None or claim.number != number:
        return 0
    yield from ensure_ready(context)
    total = 0
    for chunk in cut_ids(claim.ids):
        if claim.in_order:
            total += yield from _settle_in_order(context, claim, chunk)
        for command in _commits(context, claim, chunk):
            settled = yield from retry_until_reply(command)
            total += settled
    context.count("commit", total)
    yield from write_under_lease(context.broker, run, {"$unset": {"claim": ""}})
    run.claim = None
    return total


def _settle_in_order(context: QueueContext[Any], claim: StreamClaim, ids: Sequence[Any]) -> Flow[int]:
    """Commit the held items that have places in sequences, and return how many (transactions of up to 1,000 items)."""
    total = 0
    while True:
        number, promoted = yield from run_atomic(context.broker, partial(_settle_page, context, claim, ids))
        record_promoted(context.broker, promoted)
        total += number
        if number < ITEMS_PER_TRANSACTION:
            return total


def _settle_page(
    context: QueueContext[Any], claim: StreamClaim, ids: Sequence[Any]
) -> Flow[tuple[int, list[Promoted]]]:
    """Commit some held items that have places, and let the next ones follow; called in a transaction."""
    fence = {"_id": {"$in": list(ids)}, "token": claim.token, "place": HAS_PLACE}
    documents = yield from find_few(
        context.broker, fence, [("_id", 1)], ITEMS_PER_TRANSACTION, projection={"sequence": 1}
    )
    number = 0
    for command in _commits(context, claim, [document["_id"] for document in documents], gives_up_place=True):
        number += yield from command
    sequences = [document.get("sequence") for document in documents]
    left = Counter(sequence for sequence in sequences if isinstance(sequence, str))  # another program may write any
    return number, (yield from leave(context.broker, context.name, left))


def _commits(
    context: QueueContext[Any], claim: StreamClaim, ids: Sequence[Any], *, gives_up_place: bool = False
) -> Iterator[Command[int]]:
    """Return the commands that commit the held items of some ids; items with remembered ids go first."""
    place = {"place": ""} if gives_up_place else {}
    now, fence = context.broker.clock.now(), {"_id": {"$in": list(ids)}, "token": claim.token}
    if claim.remembers:
        remembered = _retention_of(context, claim, now, now + timedelta(days=1), place)
        assert remembered is not None
        yield update_many_command({**fence, "once": {"$gt": now}}, _lasting(context, remembered, now))
    retention = _retention_of(context, claim, now, None, place)
    if retention is None:
        yield replace(delete_many(fence), resolved=True)
    else:
        yield update_many_command(fence, retention)


def _retention_of(
    context: QueueContext[Any], claim: StreamClaim, now: datetime, once: datetime | None, place: Mapping[str, str]
) -> Mapping[str, Any] | None:
    item: Item[Any] = context.raw_item({"q": context.name, "token": claim.token, "once": once}, now)
    update = retention_update(context, item, now, {})
    return update and {**update, "$unset": {**update["$unset"], **place}}


def _lasting(context: QueueContext[Any], retention: Mapping[str, Any], now: datetime) -> list[dict[str, Any]]:
    """Return an update of kept items as a pipeline.

    It keeps each item at least for as long as its id is remembered. Only a pipeline can compare with a stored field.
    """
    history = context.settings.history
    until: Any = "$once" if history is None else {"$max": ["$once", now + history]}
    marks = {name: {"$literal": value} for name, value in retention["$set"].items()}
    return [{"$set": {**marks, "expires": until}}, {"$unset": list(retention["$unset"])}]


def release_consumer(broker: BrokerContext, consumer: Any) -> Flow[int]:
    """Give back all items that a consumer holds, end its run, and return how many items that were.

    A crash in between leaves some: call it again. A run that begins meanwhile does not find them.
    """
    id = stream_id(consumer_name(consumer))
    yield from ensure_broker_ready(broker, write=True)
    ended = {"$set": {"until": broker.clock.now()}, "$unset": {"token": "", "by": ""}}
    document: Any = yield from Command("find_one_and_update", {"filter": {"_id": id}, "update": ended})
    if document is None or "claim" not in document:
        return 0
    claim = StreamClaim.of(document["claim"])
    number = yield from _give_up(broker, document["queue"], claim)
    broker.counters.add(document["queue"], "release", number)
    # A run that has begun meanwhile has a token, and its claim must stay.
    filter = {"_id": id, "token": {"$exists": False}, "claim.token": claim.token}
    yield from Command("update_one", {"filter": filter, "update": {"$unset": {"claim": ""}}})
    return number


def _give_up(broker: BrokerContext, queue: str, claim: StreamClaim) -> Flow[int]:
    """Return the unused items of a claim to the place of its first item, and count them (``update`` of many)."""
    # Without ids the claim is unfinished; its items are found by the end of their lease and the token.
    filters: list[dict[str, Any]] = [{"q": queue, "when": claim.until}]
    if claim.ids is not None:
        filters = [{"_id": {"$in": list(chunk)}} for chunk in cut_ids(claim.ids)]
    number = 0
    for filter in filters:
        command = update_many_command({**filter, "token": claim.token}, release_update(claim.due))
        released = yield from retry_until_reply(command)
        number += released
    broker.record_put(queue, claim.due, number=number, is_new=False)
    return number


@dataclass(frozen=True, slots=True)
class ClaimNotes:
    """Notes that are stored with a claim.

    Attributes:
        note: text of the note; ``None`` without one.
        other_ids: ids of the claim that are not ObjectIds: other programs made them.
    """

    note: str | None = None
    other_ids: tuple[Any, ...] = ()


def write_note(broker: BrokerContext, consumer: str, token: ObjectId, text: str) -> Flow[bool]:
    """Write a note on the claim with this token (``update``), and return whether the consumer still has that claim."""
    yield from ensure_broker_ready(broker, write=True)
    filter, update = _claim_filter(consumer, token), {"$set": {"claim.note": text}}
    command = Command("update_one", {"filter": filter, "update": update}, has_matched, resolved=True)
    matched = yield from retry_until_reply(command)
    return bool(matched)


def read_notes(broker: BrokerContext, consumer: str, token: ObjectId) -> Flow[ClaimNotes]:
    """Read the notes of the claim with this token (``find``); empty when the consumer has another claim or none."""
    yield from ensure_broker_ready(broker, write=False)
    document = yield from find_one(broker, _claim_filter(consumer, token), {"claim.note": 1, "claim.others": 1})
    if document is None:
        return ClaimNotes()
    return ClaimNotes(document["claim"].get("note"), tuple(document["claim"].get("others", ())))


def _claim_filter(consumer: str, token: ObjectId) -> dict[str, Any]:
    return {"_id": stream_id(consumer), "claim.token": token}
