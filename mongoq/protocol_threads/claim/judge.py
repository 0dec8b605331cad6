# Generated from mongoq/protocol/claim/judge.py by scripts/unasync.py. Do not edit.
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

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from mongoq.errors import ReservationLost
from mongoq.model.envelope import has_start_by
from mongoq.model.item import Item, id_key
from mongoq.model.log_fields import log_fields
from mongoq.protocol.claim.expiry import UNREAD, is_expired, make_expiry
from mongoq.protocol.claim.judge import OnInvalid, Unfit, decode, logger, raise_or_log, raises_invalid
from mongoq.protocol.claim.reservation import give_back_items
from mongoq.protocol.settle.settlement import Batch, Wanted
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol_threads.base.find import find_few
from mongoq.protocol_threads.base.retry import retry_once
from mongoq.protocol_threads.claim.expiry import settle_expired_head
from mongoq.protocol_threads.claim.reservation import update_held
from mongoq.protocol_threads.settle.send import settle_all
from mongoq.protocol_threads.settle.settle import bury


def bury_unfit(context: QueueContext[Any], item: Item[Any], unfit: Unfit) -> None:
    """Bury a reserved item. If its lease has ended meanwhile, the next claim of the item makes the same decision."""
    try:
        bury(context, item, reason=unfit.reason, error=unfit.error, attempts=unfit.attempts)
        context.unfit += 1
    except ReservationLost as lost:
        words = item.id, item.queue, lost
        logger.warning("item %s of queue %r was not buried here: %s", *words, extra=log_fields(item))


def start_or_expire(context: QueueContext[Any], items: list[Item[Any]]) -> list[Item[Any]]:
    """Return the reserved items that start now; items whose time is over are settled (``update`` or ``delete``).

    All items are under one token. Items without a date cost no command.
    """
    if not has_start_by(items):
        return items
    now = context.broker.clock.now()
    expired = [item for item in items if is_expired(item, now)]
    if expired:
        try:
            _expire_reserved(context, expired)
            settle_expired_head(context)
        except Exception:
            # They were claimed for a caller that gets this error in their place.
            with suppress(Exception):
                retry_once(give_back_items(context, items))
            raise
    late = {id_key(item.id) for item in expired}
    starting = [item for item in items if id_key(item.id) not in late]
    dated = [item for item in starting if item.stored("start_by") is not None]
    if dated:
        held = update_held(context, dated, {"$unset": {"start_by": ""}}, claimed=starting)
        lost = {id_key(item.id) for item in dated} - {id_key(item.id) for item in held}
        starting = [item for item in starting if id_key(item.id) not in lost]
    return starting


def _expire_reserved(context: QueueContext[Any], items: Sequence[Item[Any]]) -> None:
    """Settle the expired items of a claim; an item that another caller has by now is left to it."""
    if any(item.stored("q") is None for item in items):  # the claim of a stream reads few fields
        fence = {"_id": {"$in": [item.id for item in items]}, "token": items[0].token}
        documents = find_few(context.broker, fence, [("_id", 1)], len(items), projection=UNREAD)
        now = context.broker.clock.now()
        items = [context.raw_item(document, now) for document in documents]
    batch = Batch(context.broker.clock)
    wanted: list[Wanted] = [(item, make_expiry(context, item, batch, claimed=True)) for item in items]
    result = settle_all(wanted)
    for error in result.failed.values():
        if not isinstance(error, ReservationLost):
            raise error


def decode_items(context: QueueContext[Any], items: list[Item[Any]], on_invalid: OnInvalid) -> list[Item[Any]]:
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
            retry_once(give_back_items(context, others))
        raise_or_log(context, item, verdict, on_invalid)
        bury_unfit(context, item, verdict)
    return decoded
