# Generated from mongoq/core/claim/worker_claims.py by scripts/unasync.py. Do not edit.
"""Claims of a worker: batches of items that run beside others, and items with expired leases one at a time.

Items that do not match the filter of a consumer are settled once, when they are claimed first. A filter within the
claim itself would read such items at every claim: 113 ms a claim behind 100,000 of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from bson import ObjectId

from mongoq.core.base.statements import number_found
from mongoq.core.claim.batch_claim import BatchClaim, Candidates
from mongoq.core.claim.judge import make_marks, unclaimed
from mongoq.core.claim.worker_claims import BLOCKED_WAIT_SECONDS, MAX_CLAIM, ClaimedBatch, ItemFilter, M, skip_lapsed
from mongoq.core.command import Blocked, Command, PartlyRefused
from mongoq.core.history.query import is_refused_filter, refusal
from mongoq.core.settle.move import make_move
from mongoq.core.settle.settle import make_commit
from mongoq.core.settle.settlement import Batch, Wanted, group_by_statement
from mongoq.core.state.claim_hints import eligible
from mongoq.core.state.context import Handed, QueueContext
from mongoq.core_threads.base.find import find_one
from mongoq.core_threads.base.queue_settings import ensure_ready
from mongoq.core_threads.base.retry import retry_once, retry_until_reply
from mongoq.core_threads.claim.batch_claim import claim_by_id, read_candidates, read_ids, send_claim
from mongoq.core_threads.claim.judge import bury_foreign, decode_items, hand_out, start_or_expire
from mongoq.core_threads.claim.reserve import claim_one
from mongoq.core_threads.settle.apply_outcomes import apply_outcomes
from mongoq.core_threads.wait.wait import wait_for_item
from mongoq.data.encoding.codec import UnreadableDocument
from mongoq.data.item import Document, Item, id_key
from mongoq.data.push_options import due_time
from mongoq.errors import FilterInvalid, ReservationLost

# --- filters of consumers -------------------------------------------------------------------------


def check_on_server(context: QueueContext[Any], wanted: ItemFilter) -> None:
    """Let the server check the filter (``find`` of an unused id); raise ``FilterInvalid``."""
    try:
        find_one(context.broker, {"_id": ObjectId(), **wanted.where}, {"_id": 1})
    except Exception as error:
        if is_refused_filter(error):
            raise FilterInvalid("where", f"the server refuses it: {refusal(error)}") from error
        raise


def settle_unmatched(claim: BatchClaim, wanted: ItemFilter) -> int:
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
            total += retry_until_reply(command)
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


def is_kept(context: QueueContext[Any], wanted: ItemFilter, item: Item[Any]) -> bool:
    """Return whether a reserved item matches (``find``); one that does not is settled."""
    match = find_one(context.broker, {"_id": item.id, "token": item.token, **wanted.where}, {"_id": 1})
    if match is not None:
        return True
    failed = apply_outcomes(context, [(item, wanted.rest)], wanted.resolve)
    error = failed.get(id_key(item.id))
    if error is not None and not isinstance(error, ReservationLost):
        raise error
    return False


# --- claims --------------------------------------------------------------------------------------


class ClaimLimit(Protocol):
    """Limits of a queue, as a claim goes by them."""

    def take(self, n: int) -> int:
        """Return how many of ``n`` items may be claimed now."""
        ...

    def record(self, found: int) -> None:
        """Record how many items were claimed."""
        ...

    def give_back(self) -> None:
        """Give back what the claim did not need."""
        ...


def claim_batch(
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

    def attempt() -> ClaimedBatch[M] | None:
        if over():
            return None
        ensure_ready(context)
        began = time.monotonic()
        claimed: ClaimedBatch[M] | None = None
        if limit is None or context.state.paused:
            claimed = _claim(context, n, lease, screen)
        elif allowed := (limit.take(n)):
            try:
                claimed = _claim(context, allowed, lease, screen)
            finally:
                limit.record(0 if claimed is None else len(claimed.items))
            if claimed is None or not claimed.items:
                limit.give_back()
        else:
            claimed = ClaimedBatch([], limited=True)
        answered(claimed is not None)
        if claimed is not None:
            claimed.seconds = time.monotonic() - began
        return claimed

    return wait_for_item(context, attempt, math.inf, over=over)


def _claim(
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
            candidates = read_candidates(context, n, unreserved=held_up, fields=fields)
            if candidates is None:
                return ClaimedBatch([], held_up=True) if held_up else None
        if candidates:
            now = context.broker.clock.now()
            marks, where = make_marks(context, now, length), {} if screen is None else screen.where
            claim = BatchClaim(context, candidates, marks, now, skips_lapsed=True, where=where)
            claimed.screened = 0 if screen is None else (settle_unmatched(claim, screen))
            claimed.items = send_claim(claim, settled=claimed.screened)
            claimed.lapsed, claimed.suspects = claim.lapsed, claim.suspects
            if screen is not None and claimed.screened == len(candidates) < MAX_CLAIM:
                # No candidate matched, so probably more unmatched items follow: a larger pass, without a claim,
                # settles them.
                first = read_ids(context, MAX_CLAIM, fields=screen.fields)
                if first:
                    now = context.broker.clock.now()
                    claim_of_none = BatchClaim(context, Candidates(first), marks, now, where=where)
                    claimed.screened += settle_unmatched(claim_of_none, screen)
        else:  # no batch can hold the first item, or only a claim can find out whether it is free
            item = claim_one(context, length)
            if item is None:
                return None
            if screen is None or (is_kept(context, screen, item)):
                claimed.items = [item]
            else:
                claimed.screened = 1
        claimed.items = hand_out(context, claimed.items, length)
        if claimed.items or claimed.lapsed or claimed.suspects or claimed.screened:
            return claimed
    return None


def take_over(context: QueueContext[M], handed: Sequence[Handed]) -> list[Item[M]]:
    """Return the items that settlements have reserved for this worker, as ``claim_batch`` returns those of a claim.

    It needs no command for them, unless one cannot be decoded: that one is buried. A crash before it leaves them
    reserved to the ends of their leases.
    """
    items = []
    for document, marks, now in handed:
        if isinstance(document, UnreadableDocument):
            bury_foreign(context, {"q": context.name, "when": marks["when"], "token": marks["token"]})
        else:
            fields = {name: value for name, value in document.items() if name != "ready_from"}
            items.append(context.raw_item({**fields, **marks, "attempts": 1}, now, due=now))
    decoded = decode_items(context, items, "bury")
    context.count("reserve", len(decoded))
    return decoded


def claim_lapsed(
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
            item = claim_by_id(claim, document, together=together, patience=BLOCKED_WAIT_SECONDS)
            if item is not None:
                items.append(item)
    except Blocked:
        skip_lapsed(context)
    except Exception:
        with suppress(Exception):
            retry_once(claim.give_back())
        raise
    return hand_out(context, start_or_expire(context, items), length)
