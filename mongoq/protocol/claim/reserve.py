"""Claims of one item: reserve, by one findAndModify on the head of the queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, TypeVar

from bson import ObjectId

from mongoq.errors import ArgumentInvalid, PayloadInvalid, ReservationLost
from mongoq.model.arguments import REASON_BYTES, Duration, duration, wait_seconds
from mongoq.model.encoding.error_text import one_line
from mongoq.model.encoding.ids import new_id
from mongoq.model.envelope import Document, attempts_of, shorten
from mongoq.model.indexes import CLAIM_ORDER
from mongoq.model.item import Item
from mongoq.model.log_fields import log_fields
from mongoq.protocol.base.first_due import has_items_before_bound, refresh_hints
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.retry import retry_once
from mongoq.protocol.claim import foreign
from mongoq.protocol.claim.expiry import start_or_expire
from mongoq.protocol.flow import MAX_SENDS, Command, Flow, Refused, ReplyLost, Shared, Unreadable, has_matched
from mongoq.protocol.settle import settle
from mongoq.protocol.settle.bury import bury, reason_exhausted
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol.wait.wait import wait_for_item

logger = logging.getLogger("mongoq.claim")

M = TypeVar("M")
R = TypeVar("R")
OnInvalid = Literal["bury", "raise"]
"""Treatment of a claimed item with a payload that does not fit the model."""


Take = Callable[[QueueContext[Any], timedelta], "Shared[Item[Any] | None] | Flow[Item[Any] | None]"]
"""Claims an item that can be returned to the caller, undecoded.

Alternatively it returns a part of a shared claim, whose items come with at least half of their lease left."""


class NotYet(Exception):
    """Raised when other consumers took the item; the queue may still hold enough."""


def reserve(
    context: QueueContext[M],
    *,
    lease: Duration | None,
    wait: Duration | None,
    on_invalid: OnInvalid,
    take: Take | None = None,
) -> Flow[Item[M] | None]:
    """Claim the first eligible item for the duration of a lease; with ``wait``, wait for one."""
    length = None if lease is None else duration(lease, "lease", zero=False)
    patience = wait_seconds(wait)
    check_on_invalid(on_invalid)
    if not patience:
        return reserve_now(context, length, on_invalid, take)
    return wait_for_item(context, partial(reserve_now, context, length, on_invalid, take), patience)


def make_marks(context: QueueContext[Any], now: datetime, lease: timedelta) -> dict[str, Any]:
    """Return the fields that a claim sets, with a token of its own."""
    return {"when": now + lease, "reserved": True, "token": new_id(), "by": str(context.broker.identity)}


def check_on_invalid(value: Any) -> None:
    if value not in ("bury", "raise"):
        raise ArgumentInvalid("on_invalid", f"'bury' or 'raise', not {value!r}")


def reserve_now(
    context: QueueContext[M], lease: timedelta | None, on_invalid: OnInvalid, take: Take | None = None
) -> Flow[Item[M] | None]:
    """Claim the first eligible item, if there is one that can be handed out."""
    yield from ensure_ready(context)
    while not context.state.paused:
        length = lease or context.settings.lease
        try:
            asked = (take or claim_one)(context, length)
            claimed: Item[Any] | None = (yield asked) if isinstance(asked, Shared) else (yield from asked)
        except NotYet:
            continue
        if claimed is None:
            return None
        try:
            decoded = context.decode_payload(claimed)
        except PayloadInvalid as invalid:
            yield from refuse_or_bury(context, claimed, invalid, on_invalid)
            continue
        reservation = decoded if isinstance(asked, Shared) else (yield from renew_lease(context, decoded, length))
        if reservation is not None:
            context.count("reserve")
            return reservation
    return None


def claim_one(context: QueueContext[Any], lease: timedelta) -> Flow[Item[Any] | None]:
    """Claim the first item with a run left; items before it without one, and expired ones, are settled."""
    while claimed := (yield from claim_first(context, partial(_claim, context, lease))):
        item, spent = claimed
        if spent:
            yield from bury_exhausted(context, item)
            continue
        # Asked here, so that an ordinary item costs no call.
        if "start_by" not in item._document:  # noqa: SLF001
            return item
        if (yield from start_or_expire(context, [item], item.token, partial(_give_back_command, context, item))):
            return item
    return None


def _give_back_command(context: QueueContext[Any], item: Item[Any]) -> Command[bool]:
    return settle.release_command(item.id, item.token, item.due or context.broker.clock.now())


def claim_first(context: QueueContext[Any], claim: Callable[[], Flow[R | None]]) -> Flow[R | None]:
    """Claim the first eligible item; documents of other programs before it are buried or postponed."""
    yield from refresh_hints(context)
    while not context.state.paused:
        try:
            claimed = yield from claim()
        except Refused:
            if not (yield from foreign.bury_uncountable(context)):
                raise
        except Unreadable:
            pass  # the claim has buried or postponed the document, so the item after it may be claimed
        else:
            if claimed is not None or not (yield from has_items_before_bound(context)):
                return claimed
    return None


def renew_lease(context: QueueContext[Any], item: Item[M], lease: timedelta) -> Flow[Item[M] | None]:
    """Restart the lease when the claim has used up half of it; return ``None`` when the item is lost by now."""
    until, now = item.lease_until, context.broker.clock.now()
    if until is None or now < until - lease / 2:
        return item
    given_back = settle.release_command(item.id, item.token, item.due or now)
    fence = {"_id": item.id, "token": item.token}
    update = {"$set": {"when": now + lease}}
    is_held = yield from retry_once(
        Command("update_one", {"filter": fence, "update": update}, has_matched, undo=lambda _: given_back)
    )
    return item.held_until(now + lease) if is_held else None


def _claim(
    context: QueueContext[M], lease: timedelta, *, sends: int = MAX_SENDS
) -> Flow[tuple[Item[Any], bool] | None]:
    """Send the claim; return its item, and whether it has no run left and must be buried.

    The reply is the envelope before the update, because only that contains the time at which it became eligible. When
    the reply is lost, the claimed item is searched by its token. If there is none, another claim is sent; should the
    first one still arrive, its item waits for the end of that lease.
    """
    broker = context.broker
    now = broker.clock.now()
    mine = make_marks(context, now, lease)
    token: ObjectId = mine["token"]
    heads = context.state.claim_hints
    start = heads.start(context.name, now)
    command: Command[Any] = Command(
        "find_one_and_update",
        {
            "filter": start.filter,
            "update": {"$set": mine, "$inc": {"attempts": 1}},
            "sort": CLAIM_ORDER,
        },
        undo=lambda before: before and settle.release_command(before["_id"], token, before["when"]),
        resolved=True,
    )
    try:
        before = yield command
    except ReplyLost:
        after = yield from retry_once(_find_claimed_command(context, mine, now))
        if after is None and sends > 1:
            return (yield from _claim(context, lease, sends=sends - 1))
        if after is None:
            raise
        spent = context.settings.is_spent(attempts_of(after) - 1) and "batch" not in after
        return context.raw_item(after, now, due=now), spent
    except Unreadable:
        yield from foreign.bury_unreadable(context, q=context.name, when=mine["when"], token=token)
        raise
    context.state.claim_hints.raise_bounds(start, before)
    if before is None:
        return None
    attempts = attempts_of(before)
    after = {**before, **mine, "attempts": attempts + 1}
    spent = context.settings.is_spent(attempts) and not is_suspect(before)
    # Another program may have written a value that is no date.
    due = before["when"] if isinstance(before["when"], datetime) else now
    return context.raw_item(after, now, due=due), spent


def is_suspect(before: Document) -> bool:
    """Return whether the last reservation was in a batch, and the item was not held alone since.

    Then another item of the batch may have killed the holder, and the item gets one more run, alone. A claim of one
    item sets a token and leaves ``batch`` as it is; an item given back unused has no token.
    """
    batch = before.get("batch")
    return batch is not None and before.get("token") in (None, batch)


def _find_claimed_command(
    context: QueueContext[Any], mine: Mapping[str, Any], now: datetime
) -> Command[dict[str, Any] | None]:
    """Return the search for the item of a claim with a lost reply; the index finds it by the end of its lease.

    It is an update that changes nothing, because an update waits for the majority and a read does not. The time at
    which the item became eligible is not known any more: given back, it goes after the ready items.
    """
    filter = {"q": context.name, "when": mine["when"], "token": mine["token"]}
    update = {"$set": {"reserved": True}}
    return Command(
        "find_one_and_update",
        {"filter": filter, "update": update},
        undo=lambda raw: raw and settle.release_command(raw["_id"], mine["token"], now),
    )


def bury_exhausted(context: QueueContext[Any], item: Item[Any]) -> Flow[None]:
    """Bury an item without runs left.

    The claim that found it is not counted as a run, nor is an earlier claim that died in burying it.
    """
    runs = max_runs(context)
    yield from _bury_claimed(context, item, reason_exhausted(runs), None, runs)


def max_runs(context: QueueContext[Any]) -> int:
    """Return the number of runs after which an item is buried."""
    most = context.settings.most_attempts
    assert most is not None
    return most


def _bury_claimed(
    context: QueueContext[Any], item: Item[Any], reason: str, error: Exception | None, attempts: int
) -> Flow[None]:
    """Bury a claimed item. A crash before it leaves the item reserved until its lease ends.

    If the lease has ended in the meantime, the next claim of the item makes the same decision.
    """
    try:
        yield from bury(context, item, reason=reason, error=error, attempts=attempts)
        context.unfit += 1
    except ReservationLost as lost:
        words = item.id, item.queue, lost
        logger.warning("item %s of queue %r was not buried here: %s", *words, extra=log_fields(item))


def invalid_reason(invalid: PayloadInvalid) -> str:
    """Return the reason of a burial: the invalid field, so that dead letters can be counted by it.

    The text is the same as that of ``bury(error=)``.
    """
    return shorten(str(invalid), REASON_BYTES)


def refuse_or_bury(
    context: QueueContext[Any], item: Item[Any], invalid: PayloadInvalid, on_invalid: OnInvalid
) -> Flow[None]:
    """Raise with a claimed item that cannot be decoded, or bury the item."""
    burial = partial(_bury_claimed, context, item, invalid_reason(invalid), invalid, item.attempts)
    yield from bury_or_raise(context, item, invalid, on_invalid, burial)


def bury_or_raise(
    context: QueueContext[Any],
    item: Item[Any],
    invalid: PayloadInvalid,
    on_invalid: OnInvalid,
    bury: Callable[[], Flow[None]],
) -> Flow[None]:
    """Raise with an undecodable item, or bury it; in a queue without a dead queue always raise."""
    if on_invalid == "raise" or context.settings.dead is None:
        raise PayloadInvalid(invalid.path, invalid.problem, item=item) from invalid
    log_burial(item, invalid)
    yield from bury()


def log_burial(item: Item[Any], invalid: PayloadInvalid) -> None:
    """Log that an item that cannot be decoded is buried."""
    words = item.id, item.queue, one_line(str(invalid))
    logger.warning("burying item %s of queue %r: %s", *words, extra=log_fields(item))
