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

from mongoq.core.base.bootstrap import ensure_broker_ready
from mongoq.core.base.find import find_few, find_one
from mongoq.core.base.queue_settings import ensure_ready
from mongoq.core.base.retry import retry_until_reply
from mongoq.core.base.transaction import run_atomic
from mongoq.core.claim.batch_claim import BatchClaim, Candidates, read_ids, send_claim
from mongoq.core.claim.judge import make_marks
from mongoq.core.claim.reserve import claim_one
from mongoq.core.command import MAX_COMMAND_ITEMS, Command, delete_many, has_matched
from mongoq.core.coordination.document_lease import (
    DocumentLease,
    ForeignLease,
    end_update,
    give_back,
    take_lease,
    write_under_lease,
)
from mongoq.core.perform import perform
from mongoq.core.sequence.places import Promoted, leave, record_promoted
from mongoq.core.settle.by_token import cut_ids, update_many_command
from mongoq.core.settle.settle import release_update, retention_update
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.envelope import expiry
from mongoq.data.item import Item, has_place
from mongoq.data.sequence import HAS_PLACE
from mongoq.data.stream_claim import StreamClaim, consumer_name, stream_id
from mongoq.errors import ArgumentInvalid

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


async def server_time(broker: BrokerContext) -> datetime:
    """Return the server's time."""
    await ensure_broker_ready(broker, write=True)
    return broker.clock.now()


async def open_run(broker: BrokerContext, consumer: str, queue: str, length: timedelta) -> StreamRun | ForeignLease:
    """Begin a run (``findAndModify``, upsert), or return the lease of the consumer's run that is under way.

    The new run inherits the items that the last run claimed and did not settle. A crash afterwards leaves the run begun
    until its lease ends.

    Raises:
        ArgumentInvalid: the consumer holds items of another queue.
    """
    begin = await take_lease(broker, stream_id(consumer), length, {"queue": queue, "number": 0})
    if isinstance(begin, ForeignLease):
        return begin
    token, document = begin
    claim = StreamClaim.of(document["claim"]) if "claim" in document else None
    run = StreamRun(stream_id(consumer), token, length, consumer, document["queue"], document["number"], claim)
    await _clear_claim(broker, run)
    if run.queue == queue:
        return run
    if run.claim is not None:
        # The lease was taken to read the claim. Without this the consumer would be blocked until the lease ends.
        await give_back(broker, run)
        problem = f"{consumer!r} still holds items of queue {run.queue!r}; let its query end, give them back by "
        raise ArgumentInvalid("consumer", f"{problem}broker.release_claims({consumer!r}), or choose another name")
    await write_under_lease(broker, run, {"$set": {"queue": queue}})
    run.queue = queue
    return run


async def _clear_claim(broker: BrokerContext, run: StreamRun) -> None:
    """Give back the items of an unfinished claim, left by a crash or an error: no caller has seen them."""
    if run.claim is not None and run.claim.ids is None:
        await _give_up(broker, run.queue, run.claim)
        await write_under_lease(broker, run, {"$unset": {"claim": ""}})
        run.claim = None


async def next_claim(
    context: QueueContext[Any],
    run: StreamRun,
    n: int,
    lease: timedelta | None,
    *,
    after: int,
    due: datetime | None = None,
) -> StreamClaim | None:
    """Claim up to ``n`` items for the next batch; ``None`` when none is eligible, or was at the time ``due``.

    Finds ids by the index, writes the claim with its token, reserves (``update`` of many, each 10,000), writes the ids.
    A consumer has one claim at most, so the last one must be settled. A crash before the end leaves items that the next
    run gives back, the attempt not counted.

    As in any batch, an item without runs left is buried. An item whose last run was in a batch gets one more run, in a
    batch of its own, since a neighbour may have caused the failure.

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
    await ensure_ready(context)
    broker = context.broker
    await _clear_claim(broker, run)
    if context.state.paused:
        return None
    now, length = broker.clock.now(), lease or context.settings.lease
    marks = make_marks(context, now, length)
    now = now if due is None else min(due, now)
    first = await read_ids(context, min(MAX_COMMAND_ITEMS, n), due=due)
    if first is None:
        return None
    first_due = min((document["when"] for document in first), default=now)
    intent = StreamClaim(max(run.number, after) + 1, marks["token"], marks["when"], first_due)
    run.claim = intent
    # Written before the items are reserved: after a crash the next run finds them by this token and gives them back.
    await write_under_lease(broker, run, {"$set": {"claim": intent.document()}})
    items: list[Item[Any]] = []
    found: list[Mapping[str, Any]] | None = first
    while found and not context.state.paused:
        size = min(MAX_COMMAND_ITEMS, n - len(items))
        candidates = Candidates(documents=found)
        part = BatchClaim(context, candidates, marks, now, adds_to_token=bool(items), writes_entry_time=True)
        some = await send_claim(part, projection=RESERVED_ITEM_FIELDS)
        items += some
        # The control document has little room for ids that are not ObjectIds.
        is_odd = any(type(item.id) is not ObjectId for item in some)
        if items and (is_odd or len(some) < 2 or len(found) < size or len(items) == n):
            break
        found = await read_ids(context, min(MAX_COMMAND_ITEMS, n - len(items)), due=due)
    if not items and found is not None and not context.state.paused:
        # The first document has fields of odd types, written by another program; no batch can hold it.
        item = await claim_one(context, length)
        if item is not None:
            # ``claim_one`` reserves under a token of its own; the item is put under the token of the claim here.
            filter, update = {"_id": item.id, "token": item.token}, {"$set": {**marks, "pushed": item.due}}
            if await perform(Command("update_one", {"filter": filter, "update": update}, has_matched)):
                items = [item]
    if not items:
        await _clear_claim(broker, run)
        return None
    # Ids that are not ObjectIds come last, as in the stored form.
    ids = sorted((item.id for item in items), key=lambda id: type(id) is not ObjectId)
    remembers, in_order = any(item.once is not None for item in items), any(map(has_place, items))
    claim = replace(intent, ids=ids, remembers=remembers, in_order=in_order)
    await write_under_lease(broker, run, {"$set": {"claim": claim.document(), "number": claim.number}})
    run.claim, run.number = claim, claim.number
    context.count("reserve", len(items))
    return claim


async def take_up_claim(broker: BrokerContext, run: StreamRun, *, after: int) -> StreamClaim | None:
    """Return the claim that is not settled yet, if any, with a number after the caller's (``update``)."""
    claim = run.claim
    if claim is None or claim.ids is None:
        return None
    if claim.number <= after:
        claim = replace(claim, number=after + 1)
        await write_under_lease(broker, run, {"$set": {"claim.number": claim.number, "number": claim.number}})
        run.claim, run.number = claim, claim.number
    return claim


async def settle_claim(context: QueueContext[Any], run: StreamRun, number: int) -> int:
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
    await ensure_ready(context)
    total = 0
    for chunk in cut_ids(claim.ids):
        settled = ITEMS_PER_TRANSACTION if claim.in_order else 0
        while settled == ITEMS_PER_TRANSACTION:
            settle = partial(_settle_in_order, context, claim, chunk)
            settled, promoted = await run_atomic(context.broker, settle)
            record_promoted(context.broker, promoted)
            total += settled
        for command in _commits(context, claim, chunk):
            total += await retry_until_reply(command)
    context.count("commit", total)
    await write_under_lease(context.broker, run, {"$unset": {"claim": ""}})
    run.claim = None
    return total


async def _settle_in_order(
    context: QueueContext[Any], claim: StreamClaim, ids: Sequence[Any]
) -> tuple[int, list[Promoted]]:
    """Commit some held items that have places in sequences, and let the next ones follow, inside a transaction."""
    fence = {"_id": {"$in": list(ids)}, "token": claim.token, "place": HAS_PLACE}
    documents = await find_few(context.broker, fence, [("_id", 1)], ITEMS_PER_TRANSACTION, projection={"sequence": 1})
    number = 0
    for command in _commits(context, claim, [document["_id"] for document in documents], gives_up_place=True):
        number += await perform(command)
    sequences = [document.get("sequence") for document in documents]
    left = Counter(sequence for sequence in sequences if isinstance(sequence, str))  # another program may write any
    return number, (await leave(context.broker, context.name, left))


def _commits(
    context: QueueContext[Any], claim: StreamClaim, ids: Sequence[Any], *, gives_up_place: bool = False
) -> Iterator[Command[int]]:
    """Return the commands that commit the held items of some ids; items with remembered ids go first."""
    now, fence = context.broker.clock.now(), {"_id": {"$in": list(ids)}, "token": claim.token}
    place = {"place": ""} if gives_up_place else {}

    def make_retention(once: datetime | None) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        item: Item[Any] = context.raw_item({"q": context.name, "token": claim.token, "once": once}, now)
        update = retention_update(context, item, now, expiry(now, context.settings.history, once))
        return None if update is None else (update["$set"], {**update["$unset"], **place})

    if claim.remembers and (remembered := make_retention(now + timedelta(days=1))):
        # Each item is kept at least for as long as its id is remembered. Only a pipeline can compare with a field.
        history = context.settings.history
        until: Any = "$once" if history is None else {"$max": ["$once", now + history]}
        fields = {name: {"$literal": value} for name, value in remembered[0].items()}
        pipeline = [{"$set": {**fields, "expires": until}}, {"$unset": list(remembered[1])}]
        yield update_many_command({**fence, "once": {"$gt": now}}, pipeline)
    if kept := make_retention(None):
        yield update_many_command(fence, {"$set": kept[0], "$unset": kept[1]})
    else:
        yield replace(delete_many(fence), resolved=True)


async def release_consumer(broker: BrokerContext, consumer: Any) -> int:
    """Give back all items that a consumer holds, end its run, and return how many items that were.

    A crash in between leaves some: call it again. A run that begins meanwhile does not find them.
    """
    id = stream_id(consumer_name(consumer))
    await ensure_broker_ready(broker, write=True)
    arguments = {"filter": {"_id": id}, "update": end_update(broker)}
    document: Any = await perform(Command("find_one_and_update", arguments))
    if document is None or "claim" not in document:
        return 0
    claim = StreamClaim.of(document["claim"])
    number = await _give_up(broker, document["queue"], claim)
    broker.counters.add(document["queue"], "release", number)
    # A run that has begun meanwhile has a token, and its claim must stay.
    filter = {"_id": id, "token": {"$exists": False}, "claim.token": claim.token}
    await perform(Command("update_one", {"filter": filter, "update": {"$unset": {"claim": ""}}}))
    return number


async def _give_up(broker: BrokerContext, queue: str, claim: StreamClaim) -> int:
    """Return the unused items of a claim to the place of its first item, and count them (``update`` of many)."""
    # Without ids the claim is unfinished; its items are found by the end of their lease and the token.
    filters: list[dict[str, Any]] = [{"q": queue, "when": claim.until}]
    if claim.ids is not None:
        filters = [{"_id": {"$in": list(chunk)}} for chunk in cut_ids(claim.ids)]
    number = 0
    for filter in filters:
        command = update_many_command({**filter, "token": claim.token}, release_update(claim.due))
        number += await retry_until_reply(command)
    broker.record_put(queue, claim.due, number=number, is_new=False)
    return number


async def write_note(broker: BrokerContext, consumer: str, token: ObjectId, text: str) -> bool:
    """Write a note on the claim with this token (``update``), and return whether the consumer still has that claim."""
    await ensure_broker_ready(broker, write=True)
    arguments = {"filter": _claim_filter(consumer, token), "update": {"$set": {"claim.note": text}}}
    return await retry_until_reply(Command("update_one", arguments, has_matched, resolved=True))


async def read_notes(broker: BrokerContext, consumer: str, token: ObjectId) -> tuple[str | None, Sequence[Any]]:
    """Read the note of the claim with this token, and its ids that are not ObjectIds (``find``).

    ``None`` and no ids when the consumer has another claim, or none.
    """
    await ensure_broker_ready(broker, write=False)
    document = await find_one(broker, _claim_filter(consumer, token), {"claim.note": 1, "claim.others": 1})
    claim = {} if document is None else document["claim"]
    return claim.get("note"), claim.get("others", ())


def _claim_filter(consumer: str, token: ObjectId) -> dict[str, Any]:
    return {"_id": stream_id(consumer), "claim.token": token}
