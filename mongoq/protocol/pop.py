"""Pop: the first eligible item taken for good, by one findAndModify."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from bson import ObjectId

from mongoq.errors import PayloadInvalid
from mongoq.model.envelope import Document, attempts_of, expiry
from mongoq.model.ids import new_id
from mongoq.model.item import Item
from mongoq.protocol import foreign, move, settle
from mongoq.protocol.claim import (
    OnInvalid,
    bury_or_raise,
    check_on_invalid,
    is_suspect,
    reason_of,
    runs_of,
)
from mongoq.protocol.context import QueueContext
from mongoq.protocol.looks import ORDER, looked, looked_behind
from mongoq.protocol.marking import Marker
from mongoq.protocol.request import Command, Duplicate, Flow, Refused, ReplyLost, Unreadable, insisted
from mongoq.protocol.settings import prepared

__all__ = ["pop"]

M = TypeVar("M")
_Popped = tuple[Document, Item[Any]]
"""An envelope as it was before, and the item made of it."""


def pop(context: QueueContext[M], *, on_invalid: OnInvalid) -> Flow[Item[M] | None]:
    """Take the first eligible item for good: at most once."""
    check_on_invalid(on_invalid)
    yield from prepared(context)
    yield from looked(context)
    while not context.state.paused:
        now, settings = context.broker.clock.now(), context.settings
        try:
            popped = yield from (
                _pop_keeping(context, now) if settings.history is not None else _pop_deleting(context, now)
            )
        except Refused:
            if not (yield from foreign.bury_uncountable(context)):
                raise
            continue
        if popped is None:
            if not (yield from looked_behind(context)):
                return None
            continue
        before, item = popped
        if settings.is_spent(attempts_of(before)) and not is_suspect(before):
            runs = runs_of(context)
            yield from _bury_popped(context, popped, move.exhausted_reason(runs), None, runs)
            continue
        try:
            decoded = context.decoded(item)
        except PayloadInvalid as error:
            burial = partial(_bury_popped, context, popped, reason_of(error), error, item.attempts)
            yield from bury_or_raise(context, item, error, on_invalid, burial)
        else:
            context.count("get")
            return decoded
    return None


def _pop_deleting(context: QueueContext[Any], now: datetime) -> Flow[_Popped | None]:
    """Delete the head of the queue.

    An item whose id is remembered leaves a stub, in a second command: a crash between the two forgets the id.
    A reply that is lost loses the item, which is what at-most-once means.
    """
    token, heads = new_id(), context.state.heads
    start = heads.start(context.name, now)
    command: Command[Any] = Command(
        "find_one_and_delete",
        {"filter": start.filter, "sort": ORDER},
        undo=lambda document: document and _put_back(document, token),
    )
    document = yield command
    context.state.claimed(start, document)
    if document is None:
        return None
    if "once" in document and (expires := expiry(now, None, document["once"])):
        yield from _remember(document, now, expires, token)
    return document, _popped_item(context, document, now)


def _put_back(document: Document, token: ObjectId) -> Command[Any]:
    """Return the command that undoes a pop, in place of its stub if there is one; not of an item pushed since."""
    filter = {"_id": document["_id"], "settled": token}
    return Command("replace_one", {"filter": filter, "replacement": document, "upsert": True})


def _remember(document: Document, now: datetime, expires: datetime, token: ObjectId) -> Flow[None]:
    stub = {name: document[name] for name in ("_id", "q", "once")}
    stub |= {"processed": now, "expires": expires, "settled": token, "reserved": False}
    undo = _put_back(document, token)
    try:
        yield from Command("insert_one", {"document": stub}, undo=lambda _: undo)
    except Duplicate:
        pass  # pushed again within this moment


def _pop_keeping(context: QueueContext[Any], now: datetime) -> Flow[_Popped | None]:
    """Turn the head of the queue into history.

    An id remembered for longer than the history costs a second command; a crash before it forgets the id when
    the history ends.
    """
    history = context.settings.history
    assert history is not None
    token, heads = new_id(), context.state.heads
    start = heads.start(context.name, now)
    command: Command[Any] = Command(
        "find_one_and_update",
        {
            "filter": start.filter,
            "update": settle.processed_update(
                {
                    "processed": now,
                    "expires": now + history,
                    "settled": token,
                    "by": str(context.broker.identity),
                },
                attempts=1,
            ),
            "sort": ORDER,
        },
        undo=lambda before: before and settle.unprocess_command(before, token),
    )
    try:
        before = yield from command
    except ReplyLost:
        after = yield from insisted(_kept_under(context, token, now))
        if after is None:
            raise
        kept = {name: value for name, value in after.items() if name not in settle.SETTLED}
        before = {**kept, "when": now, "attempts": after["attempts"] - 1}
    except Unreadable:
        yield from foreign.bury_unreadable(context, q=context.name, processed=now, settled=token)
        return (yield from _pop_keeping(context, context.broker.clock.now()))
    context.state.claimed(start, before)
    if before is None:
        return None
    yield from _keep_as_long_as_its_id(before, token, now, history)
    return before, _popped_item(context, before, now)


def _kept_under(context: QueueContext[Any], token: ObjectId, now: datetime) -> Command[dict[str, Any] | None]:
    """Return the search for what a pop took whose reply was lost, as ``_held_under`` does for a claim."""
    filter = {"q": context.name, "processed": now, "settled": token}
    return Command(
        "find_one_and_update",
        {"filter": filter, "update": {"$set": {"reserved": False}}},
        undo=lambda found: found and settle.unprocess_command({**found, "when": now}, token),
    )


def _keep_as_long_as_its_id(before: Document, token: ObjectId, now: datetime, history: timedelta) -> Flow[None]:
    expires = expiry(now, history, before.get("once"))
    if expires == now + history:
        return
    yield from Command(
        "update_one",
        {"filter": {"_id": before["_id"], "settled": token}, "update": {"$set": {"expires": expires}}},
        undo=lambda _: settle.unprocess_command(before, token),
    )


def _popped_item(context: QueueContext[Any], before: Document, now: datetime) -> Item[Any]:
    popped = {
        **before,
        "reserved": False,
        "token": None,
        "attempts": attempts_of(before) + 1,
        "by": str(context.broker.identity),
        "processed": now,
    }
    return context.raw_item(popped, now, due=before["when"])


def _bury_popped(
    context: QueueContext[Any], popped: _Popped, reason: str, error: PayloadInvalid | None, attempts: int
) -> Flow[None]:
    """Put a popped item into the dead queue; whatever stands under its id (history, a stub) gives way.

    A crash before this command loses the item from a queue without history, as any crash after a pop does.
    """
    before, item = popped
    now, queue = context.broker.clock.now(), move.dead_queue(context)
    marker = Marker(context, "dead", at=now, to=queue)
    burial, marks = move.burial(context, item, marker, reason=reason, error=error, attempts=attempts, now=now)
    kept = {name: value for name, value in before.items() if name not in burial["$unset"]}
    dead = {**kept, **burial["$set"], **marks.in_document(before)}
    yield from Command("replace_one", {"filter": {"_id": item.id}, "replacement": dead, "upsert": True})
    context.count("dead")
    context.broker.tell(queue, now, id=item.id)
