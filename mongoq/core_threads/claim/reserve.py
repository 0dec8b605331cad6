# Generated from mongoq/core/claim/reserve.py by scripts/unasync.py. Do not edit.
"""Claims for callers: ``reserve`` of one item and of many.

A claim of one item is one ``findAndModify`` on the head of the queue. A claim of many reads the first items, reserves
them by one update under one token, and reads what it has (``batch_claim``). What either has is judged in one place
(``judge``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.core.claim.batch_claim import BatchClaim
from mongoq.core.claim.judge import OnInvalid, check_on_invalid, is_exhausted, make_marks
from mongoq.core.claim.reserve import M, NotYet, R, _give_back, _unclaimed, undo_claim
from mongoq.core.command import (
    MAX_COMMAND_ITEMS,
    MAX_SENDS,
    Command,
    Refused,
    ReplyLost,
    Shared,
    Unreadable,
)
from mongoq.core.settle.settle import release_command
from mongoq.core.state.context import QueueContext
from mongoq.core_threads.base.first_due import has_items_before_bound, refresh_hints
from mongoq.core_threads.base.queue_settings import ensure_ready
from mongoq.core_threads.base.retry import retry_once
from mongoq.core_threads.claim.batch_claim import read_candidates, send_claim
from mongoq.core_threads.claim.judge import (
    bury_exhausted,
    bury_foreign,
    bury_uncountable,
    hand_out,
    renew_leases,
    start_or_expire,
)
from mongoq.core_threads.perform import perform, share
from mongoq.core_threads.wait.wait import wait_for_item
from mongoq.data.arguments import Duration, count, duration, wait_seconds
from mongoq.data.envelope import attempts_of
from mongoq.data.indexes import CLAIM_ORDER
from mongoq.data.item import Item
from mongoq.errors import ArgumentInvalid


def reserve(
    context: QueueContext[M],
    *,
    lease: Duration | None,
    wait: Duration | None,
    on_invalid: OnInvalid,
) -> Item[M] | None:
    """Claim the first eligible item for the duration of a lease; with ``wait``, wait for one.

    With group commit it is one of the first, when other callers claim at the same time.
    """
    shared = context.broker.group_commit
    items = reserve_many(context, 1, lease=lease, wait=wait, on_invalid=on_invalid, shared=shared)
    return items[0] if items else None


def reserve_many(
    context: QueueContext[M],
    n: int,
    *,
    lease: Duration | None,
    wait: Duration | None,
    on_invalid: OnInvalid,
    shared: bool = False,
) -> list[Item[M]]:
    """Claim up to ``n`` items; with ``wait``, wait for the first one. ``shared``: callers may share one claim."""
    if count(n, "n") > MAX_COMMAND_ITEMS:
        raise ArgumentInvalid("n", f"{MAX_COMMAND_ITEMS:,} is the most that can be reserved at once, not {n:,}")
    length = None if lease is None else duration(lease, "lease", zero=False)
    patience = wait_seconds(wait)
    check_on_invalid(on_invalid)

    def attempt() -> list[Item[M]] | None:
        """Claim up to ``n`` items that are eligible now, decoded; ``None`` when there are none."""
        ensure_ready(context)
        while not context.state.paused:
            lease = length or context.settings.lease
            if not shared:
                claimed = claim(context, n, lease)
            else:
                shared_claim = Shared[Any](("reserve", context.name, lease), _claim_for_all, (context, lease))
                shared_claim.undo = lambda item: item and release_command(item.id, item.token, item.due)
                try:
                    item = share(shared_claim)
                except NotYet:
                    continue
                claimed = [] if item is None else [item]
            if not claimed:
                return None
            if items := (hand_out(context, claimed, lease, on_invalid)):
                return items
        return None

    return (wait_for_item(context, attempt, patience) if patience else attempt()) or []


def claim(context: QueueContext[Any], n: int, lease: timedelta) -> list[Item[Any]]:
    """Claim up to ``n`` items that may run, undecoded; none when the queue is empty."""
    while not context.state.paused:  # other consumers may take all candidates of a try
        candidates = (read_candidates(context, n)) if n > 1 else ()
        if candidates is None:
            break
        if not candidates:
            item = claim_one(context, lease)
            return [] if item is None else [item]
        now = context.broker.clock.now()
        items = send_claim(BatchClaim(context, candidates, make_marks(context, now, lease), now))
        if items:
            return items
    return []


def _claim_for_all(entries: list[tuple[QueueContext[Any], timedelta]]) -> list[Item[Any] | NotYet | None]:
    """Claim an item for each of several callers, undecoded, with at least half of its lease left.

    The earliest callers get the first items, the others ask again.
    """
    (context, lease), n = entries[0], len(entries)
    items: list[Item[Any]] = []
    while not items and not context.state.paused:
        claimed = claim(context, n, lease)
        items = renew_leases(context, claimed, lease)
        if not claimed:
            break
    return [*items, *[NotYet() if items else None] * (n - len(items))]


# --- one item ------------------------------------------------------------------------------------


def claim_one(
    context: QueueContext[Any], lease: timedelta, undo: Callable[[ObjectId, Any], Command[Any] | None] | None = None
) -> Item[Any] | None:
    """Claim the first item that may run, undecoded; those before it that may not are settled.

    ``undo`` gives it back when the operation does not end well, given the token and the envelope before the claim.
    """
    while claimed := (claim_first(context, partial(_claim_head, context, lease, undo or undo_claim))):
        item, exhausted = claimed
        if exhausted:
            bury_exhausted(context, item)
        # Asked here, so that an ordinary item costs no call.
        elif "start_by" not in item._document or (start_or_expire(context, [item])):  # noqa: SLF001
            return item
    return None


def claim_first(context: QueueContext[Any], claim: Callable[[], R | None]) -> R | None:
    """Claim the first eligible item; documents of other programs before it are buried or postponed."""
    refresh_hints(context)
    while not context.state.paused:
        try:
            claimed = claim()
        except Refused:
            if not (bury_uncountable(context)):
                raise
        except Unreadable:
            pass  # the claim has buried or postponed the document, so the item after it may be claimed
        else:
            if claimed is not None or not (has_items_before_bound(context)):
                return claimed
    return None


def _claim_head(
    context: QueueContext[Any], lease: timedelta, undo: Callable[[ObjectId, Any], Command[Any] | None]
) -> tuple[Item[Any], bool] | None:
    """Send the claim of the first item; return it, and whether it had all its runs.

    The reply is the envelope before the update, because only that contains the time at which it became eligible. When
    the reply is lost, the claimed item is searched by its token. If there is none, another claim is sent; should the
    first one still arrive, its item waits for the end of that lease.
    """
    hints, lost = context.state.claim_hints, None
    for _ in range(MAX_SENDS):
        now = context.broker.clock.now()
        marks = make_marks(context, now, lease)
        token: ObjectId = marks["token"]
        mine = {"q": context.name, "when": marks["when"], "token": token}  # the index finds it by the end of its lease
        start = hints.start(context.name, now)
        update = {"$set": marks, "$inc": {"attempts": 1}}
        command: Command[Any] = Command(
            "find_one_and_update",
            {"filter": start.filter, "update": update, "sort": CLAIM_ORDER},
            undo=partial(_give_back, mine, now, partial(undo, token)),
            resolved=True,
        )
        try:
            before = perform(command)
        except Unreadable:
            bury_foreign(context, mine)
            raise
        except ReplyLost as error:
            lost = error
            # An update that changes nothing, because it waits for the majority and a read does not.
            find: Command[Any] = Command(
                "find_one_and_update",
                {"filter": mine, "update": {"$set": {"reserved": True}}},
                undo=partial(_give_back, mine, now, lambda raw: raw and undo(token, _unclaimed(raw, now))),  # noqa: B023
            )
            after = retry_once(find)
            if after is None:
                continue
            before = _unclaimed(after, now)
        else:
            hints.raise_bounds(start, before)
        if before is None:
            return None
        after = {**before, **marks, "attempts": attempts_of(before) + 1}
        # Another program may have written a value that is no date.
        due = before["when"] if isinstance(before["when"], datetime) else now
        return context.raw_item(after, now, due=due), is_exhausted(context, before)
    assert lost is not None
    raise lost
