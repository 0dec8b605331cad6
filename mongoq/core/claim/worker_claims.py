"""Claims of a worker: batches of items that run beside others, and items with expired leases one at a time.

Items that do not match the filter of a consumer are settled once, when they are claimed first. A filter within the
claim itself would read such items at every claim: 113 ms a claim behind 100,000 of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from bson import ObjectId

from mongoq.core.base.find import find_one
from mongoq.core.base.queue_settings import ensure_ready
from mongoq.core.base.retry import retry_once, retry_until_reply
from mongoq.core.base.statements import number_found
from mongoq.core.claim.batch_claim import BatchClaim, Candidates, claim_by_id, read_candidates, read_ids, send_claim
from mongoq.core.claim.judge import bury_foreign, decode_items, hand_out, make_marks, start_or_expire, unclaimed
from mongoq.core.claim.reserve import claim_one
from mongoq.core.command import Blocked, Command, PartlyRefused
from mongoq.core.history.query import is_refused_filter, refusal
from mongoq.core.settle.apply_outcomes import apply_outcomes
from mongoq.core.settle.move import CheckedMove, Moves, Resolve, make_move
from mongoq.core.settle.settle import make_commit
from mongoq.core.settle.settlement import Batch, Wanted, group_by_statement
from mongoq.core.state.claim_hints import eligible
from mongoq.core.state.context import Handed, QueueContext
from mongoq.core.wait.wait import wait_for_item
from mongoq.data.encoding.codec import UnreadableDocument
from mongoq.data.indexes import CLAIM_FIELDS
from mongoq.data.item import Document, Item, id_key
from mongoq.data.operators import where_filter
from mongoq.data.outcomes import Drop, Move, make_unknown_error
from mongoq.data.push_options import due_time
from mongoq.errors import ArgumentInvalid, FilterInvalid, ReservationLost

M = TypeVar("M")

MAX_CLAIM = 1_000
"""Items that one pass of a filter checks, at most."""
BLOCKED_WAIT_SECONDS = 0.5
"""Seconds that a claim of one item waits for a transaction that settles it; other claims wait meanwhile."""
LAPSED_PAUSE_SECONDS = 1.0
"""Seconds for which items with expired leases are skipped then."""
FILTER_FIELDS = {**CLAIM_FIELDS, "once": 1, "hops": 1}
"""Projection of items that a filter may settle."""


# --- filters of consumers -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class ItemFilter:
    """The filter of a consumer.

    Attributes:
        where: the filter on envelopes.
        rest: the outcome of the other items, ``Drop`` or ``Move``.
        handover: the checked ``Move``, if there is one.
        resolve: turns the handle in a ``Move`` into its context.
    """

    where: Mapping[str, Any]
    rest: Drop | Move
    handover: CheckedMove | None
    resolve: Resolve

    @property
    def fields(self) -> Mapping[str, int]:
        """Projection of the items that it may settle; a move that replaces their headers keeps the trace in them."""
        replaces_headers = self.handover is not None and self.handover.sets_headers
        return FILTER_FIELDS | {"headers": 1} if replaces_headers else FILTER_FIELDS


def make_filter(context: QueueContext[Any], where: Any, rest: Drop | Move, resolve: Resolve) -> ItemFilter:
    """Return a filter, checked as far as that goes without the server."""
    handover = None
    match rest:
        case Move():
            handover = Moves(context, resolve).check(rest)
            if handover.sequence is not None:
                raise ArgumentInvalid("sequence", "a filter moves no item into a sequence; let a handler do it")
        case Drop():
            pass
        case _:
            raise make_unknown_error(rest)
    return ItemFilter(where_filter(where, context.broker.encoding), rest, handover, resolve)


async def check_on_server(context: QueueContext[Any], wanted: ItemFilter) -> None:
    """Let the server check the filter (``find`` of an unused id); raise ``FilterInvalid``."""
    try:
        await find_one(context.broker, {"_id": ObjectId(), **wanted.where}, {"_id": 1})
    except Exception as error:
        if is_refused_filter(error):
            raise FilterInvalid("where", f"the server refuses it: {refusal(error)}") from error
        raise


async def settle_unmatched(claim: BatchClaim, wanted: ItemFilter) -> int:
    """Settle the candidates of a claim that do not match the filter, in one bulk, and return their number.

    They are not reserved, or not any more. Sent again after a lost reply, the bulk does nothing twice: they are gone by
    then. A crash before it leaves them where they are.
    """
    context, handover, total = claim.context, wanted.handover, 0
    own, fence = (
        {"q": context.name, "token": claim.token},
        {**eligible(context.name, claim.now), "$nor": [wanted.where]},
    )
    for unmarked in (context, replace(context, stage=None)):
        batch, settlements = Batch(context.broker.clock), list[Wanted]()
        for document in claim.candidates.documents:
            item: Item[Any] = unmarked.raw_item({**document, **own}, claim.now)
            settlement = make_move(unmarked, item, batch, handover) if handover else make_commit(unmarked, item, batch)
            settlements.append((item, settlement))
        groups = group_by_statement(unclaimed(context, settlements, fence))
        requests = [group.statement() for group in groups]
        command = Command("bulk_write", {"requests": requests, "ordered": False}, number_found, resolved=True)
        try:
            total += await retry_until_reply(command)
            break
        except PartlyRefused as refused:
            if unmarked is not context:
                raise
            # a trail that some other program wrote may be no list; what is left goes without marks
            total += refused.total
    if total and handover is None:
        context.count("commit", total)
    elif total and handover is not None:
        context.count("move", total)
        # Items of another program may have a priority that cannot be hashed.
        places = {place for each in claim.candidates.documents if isinstance(place := each.get("priority"), int)}
        priorities = {handover.changes.get("priority", place) for place in places}
        when = due_time(context.broker.clock, handover.delay, handover.when)
        context.broker.record_put(handover.queue, when, *priorities, number=total)
    return total


async def is_kept(context: QueueContext[Any], wanted: ItemFilter, item: Item[Any]) -> bool:
    """Return whether a reserved item matches (``find``); one that does not is settled."""
    match = await find_one(context.broker, {"_id": item.id, "token": item.token, **wanted.where}, {"_id": 1})
    if match is not None:
        return True
    failed = await apply_outcomes(context, [(item, wanted.rest)], wanted.resolve)
    error = failed.get(id_key(item.id))
    if error is not None and not isinstance(error, ReservationLost):
        raise error
    return False


# --- claims --------------------------------------------------------------------------------------


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

    async def take(self, n: int) -> int:
        """Return how many of ``n`` items may be claimed now."""
        ...

    def record(self, found: int) -> None:
        """Record how many items were claimed."""
        ...

    async def give_back(self) -> None:
        """Give back what the claim did not need."""
        ...


async def claim_batch(
    context: QueueContext[M],
    n: int,
    lease: timedelta | None,
    *,
    over: Callable[[], bool],
    answered: Callable[[bool], object] = lambda _: None,
    screen: ItemFilter | None = None,
    limit: ClaimLimit | None = None,
) -> ClaimedBatch[M] | None:
    """Claim up to ``n`` items that are to run beside others, waiting for the first as long as it takes.

    Items with expired leases stay in the queue; the result says whether there are any. ``over`` ends the wait, and the
    result is ``None``. ``answered`` is called when the server has answered, with false if there was nothing: the
    caller, who may wait for hours then, learns that an outage is over. The wait also ends when a ``screen`` has settled
    items that do not match, or when the ``limit`` allows no claim now. What it allows is taken before each claim, and
    what a claim has not needed is given back after it.
    """

    async def attempt() -> ClaimedBatch[M] | None:
        if over():
            return None
        await ensure_ready(context)
        began = time.monotonic()
        claimed: ClaimedBatch[M] | None = None
        if limit is None or context.state.paused:
            claimed = await _claim(context, n, lease, screen)
        elif allowed := (await limit.take(n)):
            try:
                claimed = await _claim(context, allowed, lease, screen)
            finally:
                limit.record(0 if claimed is None else len(claimed.items))
            if claimed is None or not claimed.items:
                await limit.give_back()
        else:
            claimed = ClaimedBatch([], limited=True)
        answered(claimed is not None)
        if claimed is not None:
            claimed.seconds = time.monotonic() - began
        return claimed

    return await wait_for_item(context, attempt, math.inf, over=over)


async def _claim(
    context: QueueContext[M], n: int, lease: timedelta | None, screen: ItemFilter | None
) -> ClaimedBatch[M] | None:
    """Claim up to ``n`` items that are eligible now, decoded; ``None`` when there are none.

    Items with expired leases stay where they are: a transaction of a dead process may hold them, or they may have
    killed their holders. All claimed items are marked as parts of a batch, even a single one: it will run beside
    others. Items that do not match the ``screen`` are settled as it defines.
    """
    while not context.state.paused:  # other consumers may take all candidates of a try
        length = lease or context.settings.lease
        claimed: ClaimedBatch[Any] = ClaimedBatch([])
        candidates: Candidates | None = Candidates()
        # An item that does not match may be the first of a sequence: one claim settles it and lets the next one follow.
        if screen is None or not context.state.ordered:
            held_up = time.monotonic() < context.state.held_up
            fields = None if screen is None else screen.fields
            candidates = await read_candidates(context, n, unreserved=held_up, fields=fields)
            if candidates is None:
                return ClaimedBatch([], held_up=True) if held_up else None
        if candidates:
            now = context.broker.clock.now()
            marks, where = make_marks(context, now, length), {} if screen is None else screen.where
            claim = BatchClaim(context, candidates, marks, now, skips_lapsed=True, where=where)
            claimed.screened = 0 if screen is None else (await settle_unmatched(claim, screen))
            claimed.items = await send_claim(claim, settled=claimed.screened)
            claimed.lapsed, claimed.suspects = claim.lapsed, claim.suspects
            if screen is not None and claimed.screened == len(candidates) < MAX_CLAIM:
                # No candidate matched, so probably more unmatched items follow: a larger pass, without a claim,
                # settles them.
                first = await read_ids(context, MAX_CLAIM, fields=screen.fields)
                if first:
                    now = context.broker.clock.now()
                    claim_of_none = BatchClaim(context, Candidates(first), marks, now, where=where)
                    claimed.screened += await settle_unmatched(claim_of_none, screen)
        else:  # no batch can hold the first item, or only a claim can find out whether it is free
            item = await claim_one(context, length)
            if item is None:
                return None
            if screen is None or (await is_kept(context, screen, item)):
                claimed.items = [item]
            else:
                claimed.screened = 1
        claimed.items = await hand_out(context, claimed.items, length)
        if claimed.items or claimed.lapsed or claimed.suspects or claimed.screened:
            return claimed
    return None


async def take_over(context: QueueContext[M], handed: Sequence[Handed]) -> list[Item[M]]:
    """Return the items that settlements have reserved for this worker, as ``claim_batch`` returns those of a claim.

    It needs no command for them, unless one cannot be decoded: that one is buried. A crash before it leaves them
    reserved to the ends of their leases.
    """
    items = []
    for document, marks, now in handed:
        if isinstance(document, UnreadableDocument):
            await bury_foreign(context, {"q": context.name, "when": marks["when"], "token": marks["token"]})
        else:
            fields = {name: value for name, value in document.items() if name != "ready_from"}
            items.append(context.raw_item({**fields, **marks, "attempts": 1}, now, due=now))
    decoded = await decode_items(context, items, "bury")
    context.count("reserve", len(decoded))
    return decoded


def skip_lapsed(context: QueueContext[Any]) -> None:
    """Let claims of batches pass over items with expired leases for a moment, so that they find those behind them."""
    context.state.held_up = time.monotonic() + LAPSED_PAUSE_SECONDS


async def claim_lapsed(
    context: QueueContext[M],
    documents: Sequence[Document],
    lease: timedelta | None,
    *,
    together: bool,
    screen: ItemFilter | None = None,
) -> list[Item[M]]:
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
            item = await claim_by_id(claim, document, together=together, patience=BLOCKED_WAIT_SECONDS)
            if item is not None:
                items.append(item)
    except Blocked:
        skip_lapsed(context)
    except Exception:
        with suppress(Exception):
            await retry_once(claim.give_back())
        raise
    return await hand_out(context, await start_or_expire(context, items), length)
