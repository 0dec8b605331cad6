"""Judgement of claimed items: which of them may not run, and what becomes of those. Every claim goes by it.

| a claimed item | is |
|---|---|
| had all its runs | buried; not one whose neighbour in a batch may have killed the holder (``is_suspect``) |
| was not started in time | settled as expired, with the others at the head of the queue (``start_or_expire``) |
| does not fit the model | buried, or raised to the caller (``on_invalid``) |
| does not match the filter of a consumer | settled as the filter defines (``settle_unmatched``) |
| cannot be decoded, or counted | buried or put off, since another program wrote it (``bury_foreign``) |

A crash leaves the item reserved to the end of its lease; the next claim of it decides again. The date by which it must
start is in ``start_by``. It decides once, under the token of the claim: either the item starts, and the date is removed
before the caller gets it, or the item has expired. So an item that was handed out never expires, neither after a
rollback nor when its lease ends.

Nothing but claims looks for expired items. A claim that meets one settles the others at the head of the queue with it,
so that a queue full of them is emptied in few commands. An item of a sequence is met when it is the first one, or when
an expired one before it is; it leaves in a transaction, in which the next one follows.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.core.base.find import find_few
from mongoq.core.base.queue_settings import refresh_settings
from mongoq.core.base.retry import retry_and_report, retry_once, retry_until_reply
from mongoq.core.base.statements import Statement, send_statements
from mongoq.core.base.transaction import run_atomic
from mongoq.core.command import (
    Command,
    Duplicate,
    PartlyRefused,
    Refused,
    Unreadable,
    has_matched,
    number_matched,
)
from mongoq.core.perform import perform
from mongoq.core.sequence.hold import Letter, hold
from mongoq.core.sequence.leave import Promoted, leave, record_promoted
from mongoq.core.settle.send import settle_all
from mongoq.core.settle.settle import (
    HISTORY_FIELDS,
    bury,
    make_burial,
    make_unstarted,
    reason_exhausted,
    release_command,
    release_update,
)
from mongoq.core.settle.settlement import Batch, Settlement, Wanted, make_statement
from mongoq.core.state.claim_hints import eligible
from mongoq.core.state.context import QueueContext
from mongoq.data.arguments import REASON_BYTES
from mongoq.data.encoding.codec import UnreadableDocument
from mongoq.data.encoding.error_text import one_line
from mongoq.data.envelope import Document, attempts_of, new_id, shorten
from mongoq.data.indexes import CLAIM_ORDER
from mongoq.data.item import Item, has_place, id_key
from mongoq.data.log_fields import log_fields
from mongoq.data.sequence import HAS_PLACE, blocked_filter
from mongoq.errors import ArgumentInvalid, PayloadInvalid, ReservationLost

logger = logging.getLogger("mongoq.claim")
foreign_logger = logging.getLogger("mongoq.foreign")

OnInvalid = Literal["bury", "raise"]
"""Treatment of a claimed item with a payload that does not fit the model."""
EXPIRED_REASON = "expired"
"""Reason in the origin of a dead letter that was not started in time."""
MAX_SWEEP = 1_000
"""Items at the head of a queue that are checked for their expiry at once, at most."""
MAX_SEQUENCES = 100
"""Sequences whose expired items are settled in one transaction, at most."""
UNREAD = {"payload": 0, "headers": 0, "error": 0, "trail": 0}
"""Projection of items that are settled unread."""
UNREADABLE_REASON = "it holds BSON that cannot be read"
POSTPONEMENT = timedelta(hours=1)
"""Time for which a document of another program is postponed in a queue without a dead queue."""
UNCOUNTABLE_FILTER = [
    {"attempts": {"$not": {"$type": "number"}}},
    # ``$type`` also matches the elements of an array, which may be numbers.
    {"attempts": {"$type": "array"}},
    {"attempts": {"$gt": 2**31}},
]
"""Conditions of attempts that ``$inc`` refuses."""


# --- runs ----------------------------------------------------------------------------------------


def is_exhausted(context: QueueContext[Any], before: Document) -> bool:
    """Return whether an item had all its runs, and no other item can have killed its last holder."""
    return context.settings.is_spent(attempts_of(before)) and not is_suspect(before)


def is_suspect(before: Document) -> bool:
    """Return whether the last reservation was in a batch, and the item was not held alone since.

    Then another item of the batch may have killed the holder, and the item gets one more run, alone. A claim of one
    item sets a token and leaves ``batch`` as it is; an item given back unused has no token.
    """
    batch = before.get("batch")
    return batch is not None and before.get("token") in (None, batch)


async def bury_exhausted(context: QueueContext[Any], item: Item[Any]) -> None:
    """Bury a reserved item that had all its runs; the claim that found it is none, nor is one that died in this."""
    runs = context.settings.most_attempts
    assert runs is not None
    await _bury(context, item, reason_exhausted(runs), None, runs)


async def _bury(
    context: QueueContext[Any], item: Item[Any], reason: str, error: PayloadInvalid | None, attempts: int
) -> None:
    """Bury a reserved item. If its lease has ended meanwhile, the next claim of the item makes the same decision."""
    try:
        await bury(context, item, reason=reason, error=error, attempts=attempts)
        context.unfit += 1
    except ReservationLost as lost:
        words = item.id, item.queue, lost
        logger.warning("item %s of queue %r was not buried here: %s", *words, extra=log_fields(item))


# --- the model -----------------------------------------------------------------------------------


def check_on_invalid(value: Any) -> None:
    if value not in ("bury", "raise"):
        raise ArgumentInvalid("on_invalid", f"'bury' or 'raise', not {value!r}")


def raises_invalid(context: QueueContext[Any], on_invalid: OnInvalid) -> bool:
    """Return whether an item that does not fit the model is raised; in a queue without a dead queue it always is."""
    return on_invalid == "raise" or context.settings.dead is None


def misfit_reason(context: QueueContext[Any], item: Item[Any], invalid: PayloadInvalid, on_invalid: OnInvalid) -> str:
    """Raise with an item that does not fit the model, or log that it is buried, and return the reason.

    The reason is the invalid field, so that dead letters can be counted by it: the text of ``bury(error=)``.
    """
    if raises_invalid(context, on_invalid):
        raise PayloadInvalid(invalid.path, invalid.problem, item=item) from invalid
    words = item.id, item.queue, one_line(str(invalid))
    logger.warning("burying item %s of queue %r: %s", *words, extra=log_fields(item))
    return shorten(str(invalid), REASON_BYTES)


async def decode_items(context: QueueContext[Any], items: list[Item[Any]], on_invalid: OnInvalid) -> list[Item[Any]]:
    """Return claimed items decoded; those that do not fit the model are buried.

    Or raise at the first one of them: then only that item stays reserved.
    """
    if context.codec.untyped:
        return items
    decoded: list[Item[Any]] = []
    for item in items:
        try:
            decoded.append(context.decode_payload(item))
        except PayloadInvalid as invalid:
            if raises_invalid(context, on_invalid) and (others := [other for other in items if other is not item]):
                await retry_once(give_back_items(context, others))
            await _bury(context, item, misfit_reason(context, item, invalid, on_invalid), invalid, item.attempts)
    return decoded


# --- the time by which an item must start --------------------------------------------------------


def is_expired(item: Item[Any], now: datetime) -> bool:
    """Return whether an item that was not started can no longer start; a date of another type never expires."""
    start_by = item.start_by
    return isinstance(start_by, datetime) and start_by <= now


async def start_or_expire(context: QueueContext[Any], items: list[Item[Any]]) -> list[Item[Any]]:
    """Return the reserved items that start now; items whose time is over are settled (``update`` or ``delete``).

    All items are under one token. Items without a date cost no command.
    """
    if all(item.start_by is None for item in items):
        return items
    now = context.broker.clock.now()
    expired = [item for item in items if is_expired(item, now)]
    if expired:
        try:
            await _expire_reserved(context, expired)
            await settle_expired_head(context)
        except Exception:
            # They were claimed for a caller that gets this error in their place.
            with suppress(Exception):
                await retry_once(give_back_items(context, items))
            raise
    late = {id_key(item.id) for item in expired}
    starting = [item for item in items if id_key(item.id) not in late]
    dated = [item for item in starting if item.stored("start_by") is not None]
    if dated:
        held = await update_held(context, dated, {"$unset": {"start_by": ""}})
        lost = {id_key(item.id) for item in dated} - {id_key(item.id) for item in held}
        starting = [item for item in starting if id_key(item.id) not in lost]
    return starting


async def _expire_reserved(context: QueueContext[Any], items: Sequence[Item[Any]]) -> None:
    """Settle the expired items of a claim; an item that another caller has by now is left to it."""
    if any(item.stored("q") is None for item in items):  # the claim of a stream reads few fields
        fence = {"_id": {"$in": [item.id for item in items]}, "token": items[0].token}
        documents = await find_few(context.broker, fence, [("_id", 1)], len(items), projection=UNREAD)
        now = context.broker.clock.now()
        items = [context.raw_item(document, now) for document in documents]
    batch = Batch(context.broker.clock)
    wanted: list[Wanted] = [(item, _make_expiry(context, item, batch, claimed=True)) for item in items]
    for error in (await settle_all(wanted)).failed.values():
        if not isinstance(error, ReservationLost):
            raise error


def _make_expiry(context: QueueContext[Any], item: Item[Any], batch: Batch, *, claimed: bool) -> Settlement:
    """Return the settlement of an item that was not started in time; the attempt of a claim that found it is none."""
    if context.settings.buries_expired:
        attempts = item.attempts - claimed
        burial = make_burial(context, item, batch, reason=EXPIRED_REASON, error=None, attempts=attempts)
        return replace(burial, event="expired")
    return make_unstarted(context, item, batch, claimed=claimed)


async def settle_expired_head(context: QueueContext[Any]) -> None:
    """Settle the expired items among the first 1,000 of the queue (``find``, ``bulkWrite``).

    They are not reserved for it: as long as ``start_by`` is there, the item was handed out to nobody. Those in
    sequences leave in transactions, with the expired ones behind them, and the next ones follow. As long as items
    follow, the head is read again. A crash leaves them where they are.
    """
    following = 1
    while following:
        try:
            following = await _settle_head(context)
        except (Refused, PartlyRefused):
            if context.stage is None:
                raise
            context = replace(context, stage=None)  # some other program wrote a trail that takes no marks


async def _settle_head(context: QueueContext[Any]) -> int:
    """Settle the expired items at the head once, and return how many items have followed them."""
    now, dead = context.broker.clock.now(), context.settings.dead
    start = context.state.claim_hints.start(context.name, now)
    try:
        documents = await find_few(context.broker, start.filter, CLAIM_ORDER, MAX_SWEEP, projection=UNREAD)
    except Unreadable:  # a document of another program: a claim finds and buries it
        return 0
    expired = _select_expired(context, documents, now, new_id())
    alone = [item for item in expired if not has_place(item)]
    placed = [item for item in expired if has_place(item)]
    number, all_promoted = 0, list[Promoted]()
    if alone:
        still = {**eligible(context.name, now), "start_by": {"$lte": now}}
        statements = list(_make_statements(context, alone, still))
        number, _ = await retry_and_report(partial(send_statements, context.broker, statements))
    for begin in range(0, len(placed), MAX_SEQUENCES):
        attempt = partial(_settle_placed, context, placed[begin : begin + MAX_SEQUENCES], now)
        settled, promoted = await run_atomic(context.broker, attempt)
        record_promoted(context.broker, promoted)
        number, all_promoted = number + settled, all_promoted + promoted
    context.count("expired", number)
    if context.settings.buries_expired and dead is not None:
        context.broker.record_put(dead, now, number=number)
    return len(all_promoted)


def _select_expired(
    context: QueueContext[Any], documents: Iterable[Document], now: datetime, token: ObjectId | None
) -> list[Item[Any]]:
    """Return the expired items among documents, under one token, so that they share a settlement."""
    items: list[Item[Any]] = [context.raw_item({**document, "token": token}, now) for document in documents]
    return [item for item in items if is_expired(item, now)]


async def _settle_placed(
    context: QueueContext[Any], heads: Sequence[Item[Any]], now: datetime
) -> tuple[int, list[Promoted]]:
    """Settle expired heads of sequences and the expired items behind them, inside a transaction.

    Returns how many, and the items that have followed. Heads that were settled or started meanwhile are left out.
    """
    ids = [item.id for item in heads]
    still = {"_id": {"$in": ids}, **eligible(context.name, now), "start_by": {"$lte": now}, "place": HAS_PLACE}
    found = await find_few(context.broker, still, [("_id", 1)], len(ids), projection={"_id": 1})
    keys = {id_key(document["_id"]) for document in found}
    leaving = [item for item in heads if id_key(item.id) in keys]
    sequences = Counter(str(item.sequence) for item in leaving)
    behind: list[Item[Any]] = []
    holds = context.settings.holds_sequences and context.settings.buries_expired
    for sequence in () if holds else sequences:  # behind a letter that holds its sequence, none leaves
        blocked, most = {**blocked_filter(context.name), "sequence": sequence}, MAX_SWEEP // len(sequences)
        documents = await find_few(context.broker, blocked, [("place", 1)], most, projection=UNREAD)
        behind += _select_expired(context, documents, now, heads[0].token)
    if not leaving:
        return 0, []
    # Read in this transaction, they are as they were: another writer of one makes it try again.
    number = await send_statements(context.broker, list(_make_statements(context, [*leaving, *behind], {})))
    if holds:
        dead = str(context.settings.dead)
        letters = [Letter(item.id, dead, str(item.sequence), item.stored("place")) for item in leaving]
        await hold(context.broker, context.name, letters)
        return number, []
    return number, (await leave(context.broker, context.name, sequences))


def _make_statements(
    context: QueueContext[Any], items: Iterable[Item[Any]], still: Mapping[str, Any]
) -> Iterator[Statement]:
    """Make one statement for all items with the same settlement; each finds only items that ``still`` match."""
    batch, by = Batch(context.broker.clock), str(context.broker.identity)
    groups: dict[int, tuple[Settlement, list[Item[Any]]]] = {}
    for item in items:
        settlement = _make_expiry(context, item, batch, claimed=False)
        groups.setdefault(id(settlement), (settlement, []))[1].append(item)
    for settlement, alike in groups.values():
        filter, update = {"_id": {"$in": [item.id for item in alike]}, **still}, settlement.update
        if update is None:
            yield "DeleteMany", {"filter": filter}
            continue
        if "by" not in update["$unset"]:  # a stub loses it
            # It tells other processes that have read the item ahead that it was taken.
            update = {**update, "$set": {**update["$set"], "by": by}}
        if any(map(has_place, alike)):
            update = {**update, "$unset": {**update["$unset"], "place": "", "ready_from": ""}}
        yield "UpdateMany", {"filter": filter, "update": update}


# --- documents of other programs -----------------------------------------------------------------


async def bury_uncountable(context: QueueContext[Any]) -> bool:
    """Bury the first eligible document with attempts that cannot be counted, if there is one (``findAndModify``).

    In a queue without a dead queue its attempts are set to 0.
    """
    filter = {"q": context.name, "when": {"$lte": context.broker.clock.now()}, "$or": UNCOUNTABLE_FILTER}
    if context.settings.dead is None:
        return await perform(
            Command("update_one", {"filter": filter, "update": {"$set": {"attempts": 0}}}, has_matched)
        )
    return await bury_foreign(context, filter, "its attempts are no number that can be counted")


async def bury_foreign(context: QueueContext[Any], filter: Mapping[str, Any], reason: str = UNREADABLE_REASON) -> bool:
    """Bury the first document that matches, and return whether there is one (``findAndModify``).

    In a queue without a dead queue it is postponed for an hour: at the head, every claim would find it again.
    """
    if not context.state.ordered:  # this process may not have heard yet of the queue's first sequence
        await refresh_settings(context)
    fields, unset_fields = _removal(context, reason)
    update = {"$set": fields, "$unset": dict.fromkeys(unset_fields, "")}
    projection = {"_id": 1, "sequence": 1, "place": 1} if context.state.ordered else {"_id": 1}
    arguments = {"filter": filter, "update": update, "sort": CLAIM_ORDER, "projection": projection}

    async def remove() -> tuple[Any, list[Promoted]]:
        """Bury the document, which then holds its sequence, or lets the next item follow; in a transaction."""
        removed: Any = await perform(Command("find_one_and_update", arguments))
        sequence, place = (removed or {}).get("sequence"), (removed or {}).get("place")
        if "q" not in fields or place is None or not isinstance(sequence, str):
            return removed, []
        if context.settings.holds_sequences and isinstance(place, int):
            await hold(context.broker, context.name, [Letter(removed["_id"], fields["q"], sequence, place)])
            return removed, []
        return removed, (await leave(context.broker, context.name, {sequence: 1}))

    is_atomic = context.state.ordered and "q" in fields
    removed, promoted = await (run_atomic(context.broker, remove) if is_atomic else remove())
    record_promoted(context.broker, promoted)
    if removed is None:
        return False
    _record_removal(context, removed["_id"], fields)
    return True


async def bury_popped_unreadable(context: QueueContext[Any], document: UnreadableDocument, marks: Document) -> None:
    """Bury or postpone a popped document, in place of the history that it left, if any (``update``).

    The server makes the document from its bytes in one command: a crash between two commands would leave it where it
    blocks the queue. If an item was pushed under its id or key meanwhile, that item stays, and the document gets a new
    id.
    """
    fields, unset_fields = _removal(context, UNREADABLE_REASON)
    id = document["_id"]
    try:
        await perform(restore_command(document, marks, fields, unset_fields))
    except Duplicate:
        id = new_id()
        if "origin" in fields:
            fields["origin"]["id"] = document["_id"]
        await perform(restore_command(document, marks, {"_id": id, **fields}, {*unset_fields, "key"}))
    _record_removal(context, id, fields)


def restore_command(
    document: UnreadableDocument,
    marks: Mapping[str, Any],
    fields: Mapping[str, Any] = MappingProxyType({}),
    unset_fields: Collection[str] = HISTORY_FIELDS,
) -> Command[Any]:
    """Return the command that stores a document as its bytes, in place of the document with the marks.

    Fields in ``fields`` are set, and ``unset_fields`` are removed.
    """
    stages: list[dict[str, Any]] = [{"$replaceWith": {"$literal": RawBSONDocument(document.raw)}}]
    if fields:
        stages.append({"$set": {name: {"$literal": value} for name, value in fields.items()}})
    stages.append({"$unset": list(unset_fields)})
    return Command("update_one", {"filter": marks, "update": stages, "upsert": True})


def _removal(context: QueueContext[Any], reason: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields to set, and to unset, of a document that is buried, or postponed without a dead queue."""
    now = context.broker.clock.now()
    if context.settings.dead is None:
        postponed = {"when": now + POSTPONEMENT, "reserved": False, "attempts": 0}
        return postponed, ("token", "batch", *HISTORY_FIELDS)
    origin = {"queue": context.name, "reason": reason, "attempts": 0, "key": None, "at": now}
    if context.stage is not None:
        origin["stage"] = context.stage.name
    buried = {"q": context.settings.dead, "when": now, "reserved": False, "attempts": 0, "origin": origin}
    place = ("place",) if context.state.ordered else ()
    return buried, ("token", "key", "start_by", *place, *HISTORY_FIELDS)


def _record_removal(context: QueueContext[Any], id: Any, fields: Mapping[str, Any]) -> None:
    context.unfit += 1
    extra = log_fields(queue=context.name, id=id)
    if "origin" not in fields:
        foreign_logger.warning(
            "put off document %s of queue %r until %s: it holds BSON that cannot be read; get(id) raises with its "
            "bytes, remove(id) deletes it",
            *(id, context.name, fields["when"]),
            extra=extra,
        )
        return
    context.count("dead")
    context.broker.record_put(fields["q"], fields["when"], id=id)
    reason = fields["origin"]["reason"]
    foreign_logger.warning("buried document %s of queue %r: %s", id, context.name, reason, extra=extra)


# --- what a claim holds before it hands it out ---------------------------------------------------


def make_marks(context: QueueContext[Any], now: datetime, lease: timedelta) -> dict[str, Any]:
    """Return the fields that a claim sets, with a token of its own."""
    return {"when": now + lease, "reserved": True, "token": new_id(), "by": str(context.broker.identity)}


def give_back_command(
    context: QueueContext[Any], token: ObjectId | None, dues: Iterable[tuple[Any, datetime]], now: datetime
) -> Command[Any]:
    """Return the command that hands back unused what the token holds of some items, given their ids and due dates."""
    if context.broker.serverless:
        filter = {"_id": {"$in": [id for id, _ in dues]}, "token": token}
        return Command("update_many", {"filter": filter, "update": release_update(now)})
    places: dict[datetime, list[Any]] = {}
    for id, due in dues:
        places.setdefault(due, []).append(id)
    requests: list[Statement] = [
        make_statement({"token": token}, ids, release_update(when)) for when, ids in places.items()
    ]
    return Command("bulk_write", {"requests": requests, "ordered": False})


def give_back_items(context: QueueContext[Any], items: Sequence[Item[Any]]) -> Command[Any]:
    """Return the command that hands back unused items that were claimed together."""
    first, now = items[0], items[0].read_at
    if len(items) == 1:
        return release_command(first.id, first.token, first.due or now)
    return give_back_command(context, first.token, [(item.id, item.due or now) for item in items], now)


async def update_held(
    context: QueueContext[Any], items: Sequence[Item[Any]], update: Mapping[str, Any]
) -> list[Item[Any]]:
    """Update items that were claimed together, and return those that their token still holds (``update``).

    The undo of their claim gives them back when the call is cancelled or fails. Sent again after a lost reply, the
    update sets the same values. ``find`` tells which items are lost, if any.
    """
    fence = {"_id": {"$in": [item.id for item in items]}, "token": items[0].token}
    command: Command[int] = Command(
        "update_many",
        {"filter": fence, "update": update},
        number_matched,
        resolved=True,
    )
    if await retry_until_reply(command) == len(items):
        return list(items)
    documents = await find_few(context.broker, fence, [("_id", 1)], len(items), projection={"_id": 1})
    held = {id_key(document["_id"]) for document in documents}
    return [item for item in items if id_key(item.id) in held]


async def renew_leases(context: QueueContext[Any], items: list[Item[Any]], lease: timedelta) -> list[Item[Any]]:
    """Restart the leases when the claim, or burials among its items, took half of them; lost items are left out."""
    until, now = items[0].lease_until if items else None, context.broker.clock.now()
    if until is None or now < until - lease / 2:
        return items
    held = await update_held(context, items, {"$set": {"when": now + lease}})
    return [item.held_until(now + lease) for item in held]
