"""Claims of many items: read the candidates, reserve them by one update under one token, return the items.

All batches take this path: of ``reserve_many``, of many callers of ``reserve`` at once, and of workers. The claims of a
stream take the middle part of it (``batch_claim``). A worker claims items with expired leases one at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from mongoq.errors import ArgumentInvalid, PayloadInvalid
from mongoq.model.arguments import Duration, count, duration, wait_seconds
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.model.item import Document, Item, id_key
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.retry import retry_once, retry_until_reply
from mongoq.protocol.claim import foreign
from mongoq.protocol.claim.batch_claim import BatchClaim, claim_by_id, give_back_command, send_claim
from mongoq.protocol.claim.candidates import Candidates, read_candidates, read_ids
from mongoq.protocol.claim.expiry import start_or_expire
from mongoq.protocol.claim.filtering import ItemFilter, is_kept, settle_unmatched
from mongoq.protocol.claim.reserve import (
    OnInvalid,
    check_on_invalid,
    claim_one,
    make_marks,
    refuse_or_bury,
)
from mongoq.protocol.flow import MAX_COMMAND_ITEMS, Blocked, Command, Flow
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol.state.taker import Handed
from mongoq.protocol.wait.wait import wait_for_item

M = TypeVar("M")

MAX_CLAIM = 1_000
"""Items that one pass of a filter checks, at most."""
BLOCKED_WAIT_SECONDS = 0.5
"""Seconds that a claim of one item waits for a transaction that settles it; other claims wait meanwhile."""
LAPSED_PAUSE_SECONDS = 1.0
"""Seconds for which items with expired leases are skipped then."""


def reserve_many(
    context: QueueContext[M], n: int, *, lease: Duration | None, wait: Duration | None, on_invalid: OnInvalid
) -> Flow[list[Item[M]]]:
    """Claim up to ``n`` items; with ``wait``, wait for the first one."""
    if count(n, "n") > MAX_COMMAND_ITEMS:
        raise ArgumentInvalid("n", f"{MAX_COMMAND_ITEMS:,} is the most that can be reserved at once, not {n:,}")
    length = None if lease is None else duration(lease, "lease", zero=False)
    patience = wait_seconds(wait)
    check_on_invalid(on_invalid)

    def attempt() -> Flow[list[Item[M]] | None]:
        yield from ensure_ready(context)
        claimed = yield from claim_batch_now(context, n, length, on_invalid)
        return None if claimed is None else claimed.items

    return (yield from (wait_for_item(context, attempt, patience) if patience else attempt())) or []


@dataclass(slots=True)
class ClaimedBatch(Generic[M]):
    """Result of a claim of many.

    Attributes:
        items: the claimed items, in the order of claims.
        lapsed: items with expired leases that were left in the queue; ``claim_lapsed`` takes them.
        suspects: the same of items that must run alone, because their next death would bury them.
        held_up: true when nothing is eligible but items with expired leases, which are skipped just now.
        screened: the number of other items that did not match the filter, and were settled.
        seconds: the duration of the claim.
        limited: true when a limit of the queue allows no claim now; nothing was claimed then.
    """

    items: list[Item[M]]
    lapsed: Sequence[Document] = ()
    suspects: Sequence[Document] = ()
    held_up: bool = False
    screened: int = 0
    seconds: float = 0.0
    limited: bool = False


class ClaimLimit(Protocol):
    """Limits of a queue, as a claim goes by them."""

    def take(self, n: int) -> Flow[int]:
        """Return how many of ``n`` items may be claimed now."""
        ...

    def record(self, found: int) -> None:
        """Record how many items were claimed."""
        ...

    def give_back(self) -> Flow[None]:
        """Give back what the claim did not need."""
        ...


def claim_batch_now(
    context: QueueContext[M],
    n: int,
    lease: timedelta | None,
    on_invalid: OnInvalid,
    *,
    skips_lapsed: bool = False,
    screen: ItemFilter | None = None,
) -> Flow[ClaimedBatch[M] | None]:
    """Claim up to ``n`` items that are eligible now, decoded; ``None`` when there are none.

    With ``skips_lapsed``, items with expired leases stay where they are: a transaction of a dead process may hold them,
    or they may have killed their holders.
    All claimed items are then marked as parts of a batch, even a single one: it will run beside others.

    With a ``screen``, items that do not match it are settled as it defines.
    """
    while not context.state.paused:  # other consumers may take all candidates of a try
        length = lease or context.settings.lease
        claimed = yield from _try_claim(context, n, length, skips_lapsed=skips_lapsed, screen=screen)
        if claimed is None:
            return None
        decoded = yield from _decode(context, claimed.items, on_invalid)
        claimed.items = yield from _renew_leases(context, decoded, length)
        if claimed.items or claimed.lapsed or claimed.suspects or claimed.held_up or claimed.screened:
            context.count("reserve", len(claimed.items))
            return claimed
    return None


def claim_for_callers(context: QueueContext[Any], n: int, lease: timedelta) -> Flow[list[Item[Any]]]:
    """Claim up to ``n`` items, undecoded, for ``n`` callers; none when the queue is empty."""
    while not context.state.paused:
        claimed = yield from _try_claim(context, n, lease)
        items = [] if claimed is None else (yield from _renew_leases(context, claimed.items, lease))
        if items or claimed is None:
            return items
    return []


def _try_claim(
    context: QueueContext[Any],
    n: int,
    lease: timedelta,
    *,
    skips_lapsed: bool = False,
    screen: ItemFilter | None = None,
) -> Flow[ClaimedBatch[Any] | None]:
    """Claim up to ``n`` items once, undecoded; ``None`` when nothing is eligible."""
    fields = None if screen is None else screen.fields
    # An item that does not match may be the first of a sequence: one claim settles it and lets the next one follow.
    if screen is not None and context.state.ordered:
        return (yield from _claim_single(context, lease, screen))
    held_up = skips_lapsed and time.monotonic() < context.state.held_up
    candidates = yield from read_candidates(context, n, unreserved=held_up, fields=fields)
    if candidates is None:
        return ClaimedBatch([], held_up=True) if held_up else None
    if not candidates:
        return (yield from _claim_single(context, lease, screen))
    now, where = context.broker.clock.now(), {} if screen is None else screen.where
    claim = BatchClaim(
        context, candidates, make_marks(context, now, lease), now, skips_lapsed=skips_lapsed, where=where
    )
    settled_number = 0 if screen is None else (yield from settle_unmatched(claim, screen))
    items = yield from send_claim(claim, len(claim.ids) - settled_number)
    # No candidate matched, so probably more unmatched items follow; a larger pass settles them faster.
    if screen is not None and settled_number == len(candidates) < MAX_CLAIM:
        settled_number += yield from _settle_unmatched_head(context, screen)
    return ClaimedBatch(items, claim.lapsed, claim.suspects, screened=settled_number)


def _claim_single(
    context: QueueContext[Any], lease: timedelta, screen: ItemFilter | None
) -> Flow[ClaimedBatch[Any] | None]:
    """Claim the first item by itself: no batch can hold it, or only a claim can find out whether it is free."""
    item = yield from claim_one(context, lease)
    if item is None:
        return None
    if screen is None or (yield from is_kept(context, screen, item)):
        return ClaimedBatch([item])
    return ClaimedBatch([], screened=1)


def _settle_unmatched_head(context: QueueContext[Any], screen: ItemFilter) -> Flow[int]:
    """Settle unmatched items among many candidates, without a claim: a small claim would meet few of them."""
    first = yield from read_ids(context, MAX_CLAIM, fields=screen.fields)
    if not first:
        return 0
    now = context.broker.clock.now()
    marks = make_marks(context, now, context.settings.lease)
    claim = BatchClaim(context, Candidates(first), marks, now, where=screen.where)
    return (yield from settle_unmatched(claim, screen))


def _decode(context: QueueContext[Any], items: list[Item[Any]], on_invalid: OnInvalid) -> Flow[list[Item[Any]]]:
    """Bury items that do not fit the model; or raise at the first one, and only that item stays reserved."""
    if context.codec.untyped:
        return items
    decoded = []
    for item in items:
        try:
            decoded.append(context.decode_payload(item))
        except PayloadInvalid as invalid:
            if on_invalid == "raise" or context.settings.dead is None:
                others = [other for other in items if other is not item]
                if others:
                    yield from retry_once(_give_back_items(context, others))
            yield from refuse_or_bury(context, item, invalid, on_invalid)
    return decoded


def _renew_leases(context: QueueContext[Any], items: list[Item[Any]], lease: timedelta) -> Flow[list[Item[Any]]]:
    """Restart the leases when burials among the items have used up half of them; lost items are left out."""
    now = context.broker.clock.now()
    if not items or now < items[0].read_at + lease / 2:
        return items
    fence = {"_id": {"$in": [item.id for item in items]}, "token": items[0].token}
    update = {"$set": {"when": now + lease}}
    renew: Command[Any] = Command(
        "update_many", {"filter": fence, "update": update}, undo=lambda _: _give_back_items(context, items)
    )
    yield from retry_until_reply(renew)
    documents = yield from find_few(context.broker, fence, [("_id", 1)], len(items), projection={"_id": 1})
    keys = {id_key(document["_id"]) for document in documents}
    return [item.held_until(now + lease) for item in items if id_key(item.id) in keys]


def _give_back_items(context: QueueContext[Any], items: list[Item[Any]]) -> Command[Any]:
    """Return the command that hands back unused items that were claimed together."""
    now = items[0].read_at
    return give_back_command(context, items[0].token, [(item.id, item.due or now) for item in items], now)


# --- claims of a worker --------------------------------------------------------------------------


def claim_batch(
    context: QueueContext[M],
    n: int,
    lease: timedelta | None,
    *,
    over: Callable[[], bool],
    answered: Callable[[bool], object] = lambda _: None,
    screen: ItemFilter | None = None,
    limit: ClaimLimit | None = None,
) -> Flow[ClaimedBatch[M] | None]:
    """Claim up to ``n`` items that are to run beside others, waiting for the first as long as it takes.

    Items with expired leases stay in the queue; the result says whether there are any. ``over`` ends the wait, and the
    result is ``None``. ``answered`` is called when the server has answered, with false if there was nothing: the
    caller, who may wait for hours then, learns that an outage is over. The wait also ends when a ``screen`` has settled
    items that do not match, or when the ``limit`` allows no claim now. What it allows is taken before each claim, and
    what a claim has not needed is given back after it.
    """

    def attempt() -> Flow[ClaimedBatch[M] | None]:
        if over():
            return None
        yield from ensure_ready(context)
        began = time.monotonic()
        if limit is None or context.state.paused:
            claimed = yield from claim_batch_now(context, n, lease, "bury", skips_lapsed=True, screen=screen)
        else:
            claimed = yield from _claim_within(context, n, lease, screen, limit)
        answered(claimed is not None)
        if claimed is not None:
            claimed.seconds = time.monotonic() - began
        return claimed

    return (yield from wait_for_item(context, attempt, math.inf, over=over))


def _claim_within(
    context: QueueContext[M], n: int, lease: timedelta | None, screen: ItemFilter | None, limit: ClaimLimit
) -> Flow[ClaimedBatch[M] | None]:
    """Claim as many items as the limit allows."""
    allowed = yield from limit.take(n)
    if not allowed:
        return ClaimedBatch([], limited=True)
    claimed = None
    try:
        claimed = yield from claim_batch_now(context, allowed, lease, "bury", skips_lapsed=True, screen=screen)
    finally:
        limit.record(0 if claimed is None else len(claimed.items))
    if claimed is None or not claimed.items:
        yield from limit.give_back()
    return claimed


def take_over(context: QueueContext[M], handed: Sequence[Handed]) -> Flow[list[Item[M]]]:
    """Return the items that settlements have reserved for this worker, as ``claim_batch`` returns those of a claim.

    It needs no command for them, unless one cannot be decoded: that one is buried. A crash before it leaves them
    reserved to the ends of their leases.
    """
    items = []
    for document, marks, now in handed:
        if isinstance(document, UnreadableDocument):
            yield from foreign.bury_unreadable(context, q=context.name, when=marks["when"], token=marks["token"])
        else:
            fields = {name: value for name, value in document.items() if name != "ready_from"}
            items.append(context.raw_item({**fields, **marks, "attempts": 1}, now, due=now))
    decoded = yield from _decode(context, items, "bury")
    context.count("reserve", len(decoded))
    return decoded


def skip_lapsed(context: QueueContext[Any]) -> None:
    """Let claims of batches pass over items with expired leases for a moment, so that they find those behind them."""
    context.state.held_up = time.monotonic() + LAPSED_PAUSE_SECONDS


def claim_lapsed(
    context: QueueContext[M],
    documents: Sequence[Document],
    lease: timedelta | None,
    *,
    together: bool,
    screen: ItemFilter | None = None,
) -> Flow[list[Item[M]]]:
    """Claim items that ``claim_batch`` has left because their leases had run out, one by one, under one token.

    One update for all would wait up to a minute for a transaction whose process has died. Here the wait for such an
    item is short; then the claim returns what it has, and for a moment claims of batches skip items with expired
    leases, since there is other work to do. ``together``: they are to run beside other items.
    """
    now, length = context.broker.clock.now(), lease or context.settings.lease
    where = {} if screen is None else screen.where
    claim = BatchClaim(context, Candidates(documents), make_marks(context, now, length), now, True, where=where)
    items: list[Item[Any]] = []
    try:
        for document in documents:
            item = yield from claim_by_id(claim, document, together=together, patience=BLOCKED_WAIT_SECONDS)
            if item is not None:
                items.append(item)
    except Blocked:
        skip_lapsed(context)
    except Exception:
        with suppress(Exception):
            yield from retry_once(claim.give_back(claim.ids))
        raise
    starting = yield from start_or_expire(context, items, claim.token, partial(claim.give_back, claim.ids))
    decoded = yield from _decode(context, starting, "bury")
    renewed = yield from _renew_leases(context, decoded, length)
    context.count("reserve", len(renewed))
    return renewed
