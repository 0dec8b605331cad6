"""Claims: reserve and pop, each one findAndModify on the head of the queue."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, TypeVar

from bson import ObjectId

from mongoq.errors import ArgumentInvalid, PayloadInvalid, ReservationLost
from mongoq.model.arguments import Duration, duration, wait_seconds
from mongoq.model.envelope import REASON_BYTES, Document, attempts_of, expiry, shorten
from mongoq.model.item import Item
from mongoq.protocol import foreign, move, settle
from mongoq.protocol.context import QueueContext
from mongoq.protocol.control import paused, ready
from mongoq.protocol.request import Command, Duplicate, Flow, Refused, ReplyLost, Unreadable, Wait

__all__ = ["ORDER", "OnInvalid", "eligible", "pop", "reserve"]

logger = logging.getLogger("mongoq.claim")

M = TypeVar("M")
OnInvalid = Literal["bury", "raise"]

ORDER = [("priority", 1), ("when", 1), ("_id", 1)]
POLL_FIRST = 0.01
POLL_MOST = 0.2


def eligible(queue: str, now: datetime) -> dict[str, Any]:
    """Return the filter of what may be claimed: ready items, and those whose lease is over."""
    return {"q": queue, "when": {"$lte": now}}


def reserve(
    context: QueueContext[M], *, lease: Duration | None, wait: Duration | None, on_invalid: OnInvalid
) -> Flow[Item[M] | None]:
    """Claim the first eligible item for the length of a lease, waiting for one if asked."""
    length = context.settings.lease if lease is None else duration(lease, "lease", zero=False)
    patience = wait_seconds(wait)
    _check_on_invalid(on_invalid)
    return (yield from _waiting(lambda: _reserve_now(context, length, on_invalid), patience))


def _check_on_invalid(value: Any) -> None:
    if value not in ("bury", "raise"):
        raise ArgumentInvalid("on_invalid", f"'bury' or 'raise', not {value!r}")


def _waiting(attempt: Callable[[], Flow[Item[M] | None]], patience: float) -> Flow[Item[M] | None]:
    """Try until there is an item or the time is up, with jittered pauses that grow."""
    deadline = math.inf if patience == math.inf else time.monotonic() + patience
    pause = POLL_FIRST
    while True:
        item = yield from attempt()
        remaining = deadline - time.monotonic()
        if item is not None or remaining <= 0:
            return item
        yield from Wait(min(remaining, pause * random.uniform(0.5, 1.0)))
        pause = min(pause * 1.5, POLL_MOST)


def _reserve_now(context: QueueContext[M], lease: timedelta, on_invalid: OnInvalid) -> Flow[Item[M] | None]:
    yield from ready(context.broker, write=True)
    while not (yield from paused(context)):
        try:
            claimed = yield from _claim(context, lease)
        except Refused:
            if not (yield from foreign.bury_uncountable(context)):
                raise
            continue
        if claimed is None:
            return None
        if (yield from _buried_if_exhausted(context, claimed)):
            continue
        try:
            return context.decoded(claimed)
        except PayloadInvalid as invalid:
            burial = partial(_bury_claimed, context, claimed, _reason(invalid), invalid, claimed.attempts)
            yield from _refuse_or_bury(context, claimed, invalid, on_invalid, burial)
    return None


def _claim(context: QueueContext[M], lease: timedelta) -> Flow[Item[Any] | None]:
    """Send the claim; the reply is the envelope as it was before, which alone tells when it became eligible."""
    broker = context.broker
    token, now = ObjectId(), broker.clock.now()
    mine = {"when": now + lease, "reserved": True, "token": token, "by": str(broker.identity)}
    command: Command[Any] = Command(
        "find_one_and_update",
        {
            "filter": eligible(context.name, now),
            "update": {"$set": mine, "$inc": {"attempts": 1}},
            "sort": ORDER,
        },
        undo=lambda before: before and _unclaim(before, token),
    )
    try:
        before = yield from command
    except ReplyLost:
        after = yield from _held_under(context, mine)
        if after is None:
            raise
        return context.raw_item(after, now, due=now)
    except Unreadable:
        yield from foreign.bury_unreadable(context, mine)
        return (yield from _claim(context, lease))
    if before is None:
        return None
    after = {**before, **mine, "attempts": attempts_of(before) + 1}
    return context.raw_item(after, now, due=before["when"])


def _unclaim(before: Document, token: ObjectId) -> Command[Any]:
    return settle.release_command(before["_id"], token, before["when"])


def _held_under(context: QueueContext[Any], mine: Mapping[str, Any]) -> Flow[dict[str, Any] | None]:
    """Find what a claim took whose reply was lost; the lease's end leads to it through the index.

    It is an update that changes nothing, since an update waits for the majority and a read does not.
    """
    filter = {"q": context.name, "when": mine["when"], "token": mine["token"]}
    update = {"$set": {"reserved": True}}
    return (yield from Command("find_one_and_update", {"filter": filter, "update": update}))


def _buried_if_exhausted(context: QueueContext[Any], item: Item[Any]) -> Flow[bool]:
    """Bury an item that had all its runs, not counting the claim that found it."""
    most = context.settings.most_attempts
    if most is None or item.attempts <= most:
        return False
    yield from _bury_claimed(context, item, move.EXHAUSTED_REASON, None, most)
    return True


def _bury_claimed(
    context: QueueContext[Any], item: Item[Any], reason: str, error: Exception | None, attempts: int
) -> Flow[None]:
    """Bury what this claim took. A crash before it leaves the item reserved until its lease ends.

    Should the lease have ended in the meantime, whoever took the item comes to the same decision.
    """
    try:
        yield from move.bury(context, item, reason=reason, error=error, attempts=attempts)
    except ReservationLost as lost:
        logger.warning("item %s of queue %r was not buried here: %s", item.id, item.queue, lost)


def _reason(invalid: PayloadInvalid) -> str:
    """Say which field is at fault, so that dead letters can be counted by it."""
    return shorten(f"payload {invalid.problem}", REASON_BYTES)


def _refuse_or_bury(
    context: QueueContext[Any],
    item: Item[Any],
    invalid: PayloadInvalid,
    on_invalid: OnInvalid,
    bury: Callable[[], Flow[None]],
) -> Flow[None]:
    """Hand an undecodable item to the caller in the error, or bury it; a dead queue has nowhere to bury it."""
    if on_invalid == "raise" or context.settings.dead is None:
        raise PayloadInvalid(invalid.path, invalid.problem, item=item) from invalid
    logger.warning("burying item %s of queue %r: %s", item.id, item.queue, invalid)
    yield from bury()


def pop(context: QueueContext[M], *, on_invalid: OnInvalid) -> Flow[Item[M] | None]:
    """Take the first eligible item for good: at most once."""
    _check_on_invalid(on_invalid)
    yield from ready(context.broker, write=True)
    while not (yield from paused(context)):
        now = context.broker.clock.now()
        keep = context.settings.history is not None
        try:
            popped = yield from (_pop_keeping(context, now) if keep else _pop_deleting(context, now))
        except Refused:
            if not (yield from foreign.bury_uncountable(context)):
                raise
            continue
        if popped is None:
            return None
        try:
            return context.decoded(popped)
        except PayloadInvalid as error:
            burial = partial(_bury_popped, context, popped, error)
            yield from _refuse_or_bury(context, popped, error, on_invalid, burial)
    return None


def _pop_deleting(context: QueueContext[Any], now: datetime) -> Flow[Item[Any] | None]:
    """Delete the head of the queue.

    An item whose id is remembered leaves a stub, in a second command: a crash between the two forgets the id.
    A reply that is lost loses the item, which is what at-most-once means.
    """
    command: Command[Any] = Command(
        "find_one_and_delete",
        {"filter": eligible(context.name, now), "sort": ORDER},
        undo=lambda document: document and Command("insert_one", {"document": document}),
    )
    document = yield from command
    if document is None:
        return None
    if expires := expiry(now, None, document.get("once")):
        yield from _remember(document, now, expires)
    return _popped_item(context, document, now)


def _remember(document: dict[str, Any], now: datetime, expires: datetime) -> Flow[None]:
    stub = {name: document[name] for name in ("_id", "q", "once")}
    stub |= {"processed": now, "expires": expires, "settled": ObjectId(), "reserved": False}
    undo: Command[Any] = Command(
        "replace_one", {"filter": {"_id": stub["_id"]}, "replacement": document, "upsert": True}
    )
    try:
        yield from Command("insert_one", {"document": stub}, undo=lambda _: undo)
    except Duplicate:
        pass  # pushed again within this moment


def _pop_keeping(context: QueueContext[Any], now: datetime) -> Flow[Item[Any] | None]:
    """Turn the head of the queue into history.

    An id remembered for longer than the history costs a second command; a crash before it forgets the id when
    the history ends.
    """
    history = context.settings.history
    assert history is not None
    token = ObjectId()
    command: Command[Any] = Command(
        "find_one_and_update",
        {
            "filter": eligible(context.name, now),
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
        filter = {"q": context.name, "processed": now, "settled": token}
        update = {"$set": {"reserved": False}}
        after: Any = yield from Command("find_one_and_update", {"filter": filter, "update": update})
        if after is None:
            raise
        before = {**after, "when": now, "attempts": after["attempts"] - 1}
    if before is None:
        return None
    yield from _keep_as_long_as_its_id(before, token, now, history)
    return _popped_item(context, before, now)


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


def _bury_popped(context: QueueContext[Any], item: Item[Any], error: PayloadInvalid) -> Flow[None]:
    """Put a popped item into the dead queue; whatever stands under its id (history, a stub) gives way.

    A crash before this command loses the item from a queue without history, as any crash after a pop does.
    """
    now = context.broker.clock.now()
    dead = move.dead_envelope(context, item, reason=_reason(error), error=error, now=now)
    yield from Command("replace_one", {"filter": {"_id": item.id}, "replacement": dead, "upsert": True})
