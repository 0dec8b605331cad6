"""Judgement of claimed items: which of them may not run, and what becomes of those. Every claim goes by it.

| a claimed item | is |
|---|---|
| had all its runs | buried; not one whose neighbour in a batch may have killed the holder (``is_suspect``) |
| was not started in time | settled as expired, with the others at the head of the queue (``expiry``) |
| does not fit the model | buried, or raised to the caller (``on_invalid``) |
| does not match the filter of a consumer | settled as the filter defines (``filtering``) |
| cannot be decoded, or counted | buried or put off, since another program wrote it (``foreign``) |

A crash leaves the item reserved to the end of its lease; the next claim of it decides again. The date by which it must
start is in ``start_by``. It decides once, under the token of the claim: either the item starts, and the date is removed
before the caller gets it, or the item has expired. So an item that was handed out never expires, neither after a
rollback nor when its lease ends.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, NamedTuple

from mongoq.errors import ArgumentInvalid, PayloadInvalid, ReservationLost
from mongoq.model.arguments import REASON_BYTES
from mongoq.model.encoding.error_text import one_line
from mongoq.model.envelope import Document, attempts_of, has_start_by, shorten
from mongoq.model.item import Item, id_key
from mongoq.model.log_fields import log_fields
from mongoq.model.process import Event
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.retry import retry_once
from mongoq.protocol.claim.expiry import EXPIRED_REASON, UNREAD, is_expired, make_expiry, settle_expired_head
from mongoq.protocol.claim.reservation import give_back_items, update_held
from mongoq.protocol.settle.send import settle_all
from mongoq.protocol.settle.settle import bury, reason_exhausted
from mongoq.protocol.settle.settlement import Batch, Wanted
from mongoq.protocol.state.context import QueueContext

logger = logging.getLogger("mongoq.claim")

OnInvalid = Literal["bury", "raise"]
"""Treatment of a claimed item with a payload that does not fit the model."""


class Unfit(NamedTuple):
    """Why a claimed item may not run, and what it counts as.

    Attributes:
        reason: reason of its burial.
        error: the misfit of its payload, if that is the reason.
        attempts: runs that count.
        event: the event to count.
    """

    reason: str
    error: PayloadInvalid | None
    attempts: int
    event: Event = "dead"


def judge(context: QueueContext[Any], item: Item[Any], before: Document, now: datetime) -> Item[Any] | Unfit:
    """Return a claimed item decoded, or why it may not run; ``before`` is its envelope as it was.

    The claim that found an unfit item is not counted as a run, nor is an earlier claim that died in burying it.
    """
    if is_expired(item, now):
        return Unfit(EXPIRED_REASON, None, attempts_of(before), "expired")
    if is_exhausted(context, before):
        return find_exhaustion(context)
    return decode(context, item)


def decode(context: QueueContext[Any], item: Item[Any]) -> Item[Any] | Unfit:
    """Return a claimed item decoded, or in which way it does not fit the model."""
    try:
        return context.decode_payload(item)
    except PayloadInvalid as error:
        # The reason is the invalid field, so that dead letters can be counted by it: the text of ``bury(error=)``.
        return Unfit(shorten(str(error), REASON_BYTES), error, item.attempts)


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


def find_exhaustion(context: QueueContext[Any]) -> Unfit:
    """Return the verdict on an item that had all its runs."""
    runs = context.settings.most_attempts
    assert runs is not None
    return Unfit(reason_exhausted(runs), None, runs)


def check_on_invalid(value: Any) -> None:
    if value not in ("bury", "raise"):
        raise ArgumentInvalid("on_invalid", f"'bury' or 'raise', not {value!r}")


def raises_invalid(context: QueueContext[Any], on_invalid: OnInvalid) -> bool:
    """Return whether an item that does not fit the model is raised; in a queue without a dead queue it always is."""
    return on_invalid == "raise" or context.settings.dead is None


def raise_or_log(context: QueueContext[Any], item: Item[Any], unfit: Unfit, on_invalid: OnInvalid) -> None:
    """Raise with an item that does not fit the model, or log that it is buried."""
    if (invalid := unfit.error) is None:
        return
    if raises_invalid(context, on_invalid):
        raise PayloadInvalid(invalid.path, invalid.problem, item=item) from invalid
    words = item.id, item.queue, one_line(str(invalid))
    logger.warning("burying item %s of queue %r: %s", *words, extra=log_fields(item))


async def bury_unfit(context: QueueContext[Any], item: Item[Any], unfit: Unfit) -> None:
    """Bury a reserved item. If its lease has ended meanwhile, the next claim of the item makes the same decision."""
    try:
        await bury(context, item, reason=unfit.reason, error=unfit.error, attempts=unfit.attempts)
        context.unfit += 1
    except ReservationLost as lost:
        words = item.id, item.queue, lost
        logger.warning("item %s of queue %r was not buried here: %s", *words, extra=log_fields(item))


async def start_or_expire(context: QueueContext[Any], items: list[Item[Any]]) -> list[Item[Any]]:
    """Return the reserved items that start now; items whose time is over are settled (``update`` or ``delete``).

    All items are under one token. Items without a date cost no command.
    """
    if not has_start_by(items):
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
        held = await update_held(context, dated, {"$unset": {"start_by": ""}}, claimed=starting)
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
    wanted: list[Wanted] = [(item, make_expiry(context, item, batch, claimed=True)) for item in items]
    result = await settle_all(wanted)
    for error in result.failed.values():
        if not isinstance(error, ReservationLost):
            raise error


async def decode_items(context: QueueContext[Any], items: list[Item[Any]], on_invalid: OnInvalid) -> list[Item[Any]]:
    """Return claimed items decoded; those that do not fit the model are buried.

    Or raise at the first one of them: then only that item stays reserved.
    """
    if context.codec.untyped:
        return items
    decoded: list[Item[Any]] = []
    for item in items:
        verdict = decode(context, item)
        if not isinstance(verdict, Unfit):
            decoded.append(verdict)
            continue
        if raises_invalid(context, on_invalid) and (others := [other for other in items if other is not item]):
            await retry_once(give_back_items(context, others))
        raise_or_log(context, item, verdict, on_invalid)
        await bury_unfit(context, item, verdict)
    return decoded
