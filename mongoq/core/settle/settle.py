"""Settling: the operations of a reservation's holder within its queue, for one item and for many.

A single item is settled by one fenced command. Of many items, each settlement is checked before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from bson import ObjectId

from mongoq.core.command import Command, has_matched
from mongoq.core.settle.send import MakeSettlement, settle_item, settle_items
from mongoq.core.settle.settlement import (
    NO_MARKS,
    Batch,
    Patch,
    Put,
    Settlement,
    check_patch,
    max_growth,
    merge_patch,
)
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.arguments import DEAD_SUFFIX, REASON_BYTES, Duration, duration, queue_name, text
from mongoq.data.envelope import EXHAUSTED_REASON, ONLY_RUN_REASON, error_document, expiry, origin_document
from mongoq.data.indexes import BEGINNING
from mongoq.data.item import Item, id_key
from mongoq.data.outcomes import Release
from mongoq.data.settings import KEEP, queue_options
from mongoq.errors import ArgumentInvalid

M = TypeVar("M")

BURIED_REASON = "buried"
HISTORY_FIELDS = ("processed", "expires", "settled")
"""Fields of history and stubs that no live item has."""
STUB_DROPPED_FIELDS = (
    "payload",
    "headers",
    "key",
    "error",
    "origin",
    "replayed",
    "by",
    "batch",
    "hops",
    "trail",
    "throttled",
)
NO_PATCH: Patch = {}


# --- done ----------------------------------------------------------------------------------------


async def commit(
    context: QueueContext[Any], item: Item[Any], *, payload: Any = KEEP, patch: Any = None, session: Any = None
) -> None:
    """Settle an item as done: delete it, or keep it as history, or as a stub that remembers its id.

    With a payload or a patch, it goes by a command of its own.
    """
    value = None if payload is KEEP else context.codec.wrap(payload)
    checked = check_patch(context, patch, replaces_payload=value is not None)
    make = partial(make_commit, payload=value, patch=checked) if checked or value is not None else make_commit
    await settle_item(context, item, make, joined=session is not None, shared=make is make_commit)


async def commit_many(context: QueueContext[Any], items: Iterable[Item[Any]]) -> None:
    """Settle items as done."""
    await settle_items(context, items, make_commit)


def make_commit(
    context: QueueContext[Any], item: Item[Any], batch: Batch, *, payload: bytes | None = None, patch: Patch = NO_PATCH
) -> Settlement:
    """Return the settlement that commits an item; with a payload or a patch, it is the only item of its batch."""
    expires = expiry(batch.now, context.settings.history, item.once)
    marks = NO_MARKS
    if context.settings.history is not None:  # a stub has no trail
        marks = batch.marks(context, item, "done", payload=payload, added=max_growth(context, patch))
    key = expires and (id_key(item.token), expires, marks)  # all that two updates can differ in
    if key not in batch.alike:
        changes = {} if payload is None else {"payload": context.broker.encoding.unwrap("payload", payload)}
        update = retention_update(context, item, batch.now, expires, changes)
        settlement = Settlement(context, update and marks.on(update), "commit", size=marks.size)
        if context.settings.history is not None:  # a stub has no payload
            merge_patch(context, settlement, patch)
        batch.alike[key] = settlement
    return batch.alike[key]


def retention_update(
    context: QueueContext[Any],
    item: Item[Any],
    now: datetime,
    expires: datetime | None,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Return the update that keeps a settled item until ``expires``, as history or as a stub; ``None`` to delete it."""
    if expires is None:
        return None
    marks = {"processed": now, "expires": expires, "settled": item.token}
    if context.settings.history is None:
        return history_update(marks, unset=STUB_DROPPED_FIELDS)
    return history_update({**marks, **(changes or {})})


def history_update(marks: Mapping[str, Any], *, attempts: int = 0, unset: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the update that turns an item into history. The token goes: left in, a late rollback revives it."""
    update: dict[str, Any] = {
        "$set": {**marks, "reserved": False},
        "$unset": dict.fromkeys(("when", "token", *unset), ""),
    }
    if attempts:
        update["$inc"] = {"attempts": attempts}
    return update


# --- handed back ---------------------------------------------------------------------------------


async def rollback(context: QueueContext[Any], item: Item[Any], *, delay: Duration, error: Any) -> None:
    """Hand an item back after a failure; beyond its retries it is buried at once."""
    make = partial(make_rollback, length=duration(delay, "delay"), error=error)
    await settle_item(context, item, make, shared=True)


async def rollback_many(context: QueueContext[Any], items: Iterable[Item[Any]], *, delay: Duration, error: Any) -> None:
    """Hand items back after a failure; items without retries left are buried."""
    length = duration(delay, "delay")
    error_document(error, BEGINNING)  # refuses what is no error
    await settle_items(context, items, partial(make_rollback, length=length, error=error))


def make_rollback(
    context: QueueContext[Any], item: Item[Any], batch: Batch, *, length: timedelta, error: Any, counted: bool = True
) -> Settlement:
    """Return the settlement that hands an item back after a failure; ``counted``: it used up a run."""
    key = length.days, length.seconds, length.microseconds, id(error), counted  # a timedelta takes longer to look up
    if counted and context.settings.is_spent(item.attempts):
        return make_burial(context, item, batch, reason=reason_exhausted(item.attempts), error=error)
    if key not in batch.alike:
        when, failure = batch.now + length, error_document(error, batch.now)
        update: dict[str, Any] = {
            "$set": {"when": when, "reserved": False, **({"error": failure} if failure else {})},
            "$unset": {"token": ""},
            **({} if counted else {"$inc": {"attempts": -1}}),
        }
        batch.alike[key] = Settlement(context, update, "rollback", put=Put(context.name, when))
    return batch.alike[key]


async def release(context: QueueContext[Any], item: Item[Any], *, delay: Duration | None = None) -> None:
    """Hand an item back unused: to its place, or put off by a delay."""
    await settle_item(context, item, _release_maker(delay))


async def release_many(
    context: QueueContext[Any], items: Iterable[Item[Any]], *, delay: Duration | None = None
) -> None:
    """Hand items back unused: to their places, or put off by a delay."""
    await settle_items(context, items, _release_maker(delay))


def _release_maker(delay: Duration | None) -> MakeSettlement:
    return make_release if delay is None else partial(make_later, delay=duration(delay, "delay"))


def make_release(
    context: QueueContext[Any], item: Item[Any], batch: Batch, put_off: Release | None = None
) -> Settlement:
    """Return the settlement that hands an item back unused: to its old place, or put off by a rate.

    What is put off has not been started: it keeps its ``start_by``, which the claim has removed.
    """
    when, throttled = item.due or batch.now, dict[str, Any]()
    if put_off is not None and put_off.when is not None:
        when, start_by = put_off.when, item.start_by
        throttled["throttled"] = {"until": when, "in_line": put_off.in_line}
        throttled |= {"start_by": start_by} if isinstance(start_by, datetime) else {}
    key = "release", when, put_off if throttled else None, throttled.get("start_by")
    if key not in batch.alike:
        update = release_update(when)
        update["$set"] |= throttled
        batch.alike[key] = Settlement(context, update, "release", put=Put(context.name, when))
    return batch.alike[key]


def make_later(
    context: QueueContext[Any],
    item: Item[Any],
    batch: Batch,
    *,
    delay: Duration | None = None,
    when: datetime | None = None,
) -> Settlement:
    """Return the settlement that puts an item off by a delay or until a time, its attempt not counted.

    The run has ended well for its process, so the mark of its batch goes: the item is under no suspicion. An item that
    had all its runs before keeps the mark, or the next claim would bury it instead of running it, alone.
    """
    due, keeps_mark = batch.due(delay, when), context.settings.is_spent(item.attempts - 1)
    key = "later", due, keeps_mark
    if key not in batch.alike:
        update = release_update(due)
        if not keeps_mark:
            update["$unset"] = {**update["$unset"], "batch": ""}
        batch.alike[key] = Settlement(context, update, "release", put=Put(context.name, due))
    return batch.alike[key]


def release_update(when: datetime) -> dict[str, Any]:
    """Return the update that hands an item back unused: where it was in the order, its attempt not counted."""
    return {"$set": {"when": when, "reserved": False}, "$unset": {"token": ""}, "$inc": {"attempts": -1}}


def release_command(id: ObjectId, token: ObjectId | None, when: datetime) -> Command[bool]:
    """Return the fenced update that hands an item back unused."""
    return Command("update_one", {"filter": {"_id": id, "token": token}, "update": release_update(when)}, has_matched)


# --- kept longer ---------------------------------------------------------------------------------


async def extend(context: QueueContext[Any], item: Item[Any], *, lease: Duration | None) -> datetime:
    """Extend the lease to ``lease`` from now, and return its new end."""
    until: datetime = await settle_item(context, item, _extension_maker(lease), shared=True)
    return until


async def extend_many(context: QueueContext[M], items: Iterable[Item[M]], *, lease: Duration | None) -> list[Item[M]]:
    """Extend the leases to ``lease`` from now, and return the items with their new ends."""
    wanted = await settle_items(context, items, _extension_maker(lease))
    return [item.held_until(settlement.answer) for item, settlement in wanted]


def _extension_maker(lease: Duration | None) -> MakeSettlement:
    length = None if lease is None else duration(lease, "lease", zero=False)

    def make_extension(context: QueueContext[Any], _: Item[Any], batch: Batch) -> Settlement:
        """Return the settlement that extends leases; its answer is their new end."""
        until = batch.now + (length or context.settings.lease)
        if until not in batch.alike:
            update, put = {"$set": {"when": until}}, Put(context.name, until)
            batch.alike[until] = Settlement(context, update, None, answer=until, put=put)
        return batch.alike[until]

    return make_extension


# --- buried --------------------------------------------------------------------------------------


def reason_exhausted(attempts: int) -> str:
    """Return the reason for burying an item without retries left, after this number of runs."""
    return ONLY_RUN_REASON if attempts <= 1 else EXHAUSTED_REASON


async def bury(
    context: QueueContext[Any], item: Item[Any], *, reason: str | None, error: Any, attempts: int | None = None
) -> None:
    """Move an item to the dead queue; its origin records the reason."""
    if reason is not None:
        text(reason, "reason", REASON_BYTES)
    await settle_item(context, item, partial(make_burial, reason=reason, error=error, attempts=attempts))


def make_burial(
    context: QueueContext[Any],
    item: Item[Any],
    batch: Batch,
    *,
    reason: str | None,
    error: Any,
    attempts: int | None = None,
) -> Settlement:
    """Return the settlement that buries an item; ``attempts`` are the runs that count, if not all."""
    counted = item.attempts if attempts is None else attempts
    failure, dead = error_document(error, batch.now), dead_queue(context)
    why = reason or (failure["message"] if failure else "") or BURIED_REASON
    stage = None if context.stage is None else context.stage.name
    changes = {
        "origin": origin_document(item, reason=why, attempts=counted, at=batch.now, stage=stage),
        **({"error": failure} if failure else {}),
        "q": dead,
        "when": batch.now,
        "reserved": False,
        "attempts": 0,
    }
    unset = {"token": "", "key": "", "batch": "", "pushed": ""}
    if item.stored("start_by") is not None:  # a letter does not expire
        unset["start_by"] = ""
    marks = batch.marks(context, item, "dead", dead, attempts=counted)
    update, put = marks.on({"$set": changes, "$unset": unset}), Put(dead, batch.now, is_new=True)
    return Settlement(context, update, "dead", size=marks.size, put=put, is_burial=True)


def dead_queue(context: QueueContext[Any]) -> str:
    """Return the name of the dead queue; raises when the queue has none."""
    if context.settings.dead is None:
        why = "is a dead queue" if context.name.endswith(DEAD_SUFFIX) else "was opened with dead=None"
        raise ArgumentInvalid("queue", f"{context.name!r} {why}, and has no dead queue; move the item, or commit it")
    return context.settings.dead


def graveyard(broker: BrokerContext, name: str) -> QueueContext[Any]:
    """Return the context of a queue of dead letters by its own name, untyped; it has no dead queue itself."""
    name = queue_name(name)
    return QueueContext(broker, queue_options(name), broker.untyped, assumed={"dead": None})
