"""Claims of many items: read the first ids by the index, update many under one token, read the result."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from mongoq.errors import ArgumentInvalid, PayloadInvalid
from mongoq.model.arguments import Duration, count, duration, wait_seconds
from mongoq.model.envelope import Document, attempts_of
from mongoq.model.item import Item, id_key
from mongoq.model.stream_claim import entry_time
from mongoq.protocol.base.find import find_few, find_sized
from mongoq.protocol.base.first_due import ORDER, has_items_before_bound
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.retry import retry_and_report, retry_once, retry_until_reply
from mongoq.protocol.claim import foreign
from mongoq.protocol.claim.batch_claim import ClaimOfMany, read_candidates, read_fresh_candidates
from mongoq.protocol.claim.filtering import ItemFilter, is_kept, settle_unmatched
from mongoq.protocol.claim.read_ahead import begin_read_ahead, read_head
from mongoq.protocol.claim.reserve import (
    OnInvalid,
    bury_exhausted,
    check_on_invalid,
    claim_one,
    is_suspect,
    refuse_or_bury,
    reserve_now,
)
from mongoq.protocol.flow import IDS, Begin, Command, Flow, Refused, ReplyLost, Unreadable
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol.wait.wait import wait_for_item

__all__ = ["BatchClaim", "claim_batch_now", "claim_some", "reserve_many", "send_claim"]

M = TypeVar("M")

MAX_CLAIM = 1_000
"""Items that one pass of a filter checks, at most."""


def reserve_many(
    context: QueueContext[M], n: int, *, lease: Duration | None, wait: Duration | None, on_invalid: OnInvalid
) -> Flow[list[Item[M]]]:
    """Claim up to ``n`` items; with ``wait``, wait for the first one."""
    if count(n, "n") > IDS:
        raise ArgumentInvalid("n", f"{IDS:,} is the most that can be reserved at once, not {n:,}")
    length = None if lease is None else duration(lease, "lease", zero=False)
    patience = wait_seconds(wait)
    check_on_invalid(on_invalid)
    if not patience:
        return (yield from _reserve_now(context, n, length, on_invalid)) or []
    return (yield from wait_for_item(context, lambda: _reserve_now(context, n, length, on_invalid), patience)) or []


def _reserve_now(
    context: QueueContext[M], n: int, lease: timedelta | None, on_invalid: OnInvalid
) -> Flow[list[Item[M]] | None]:
    """Claim until at least one item is claimed or the queue is empty.

    One try is not enough: other consumers may take all items that were read.
    """
    yield from ensure_ready(context)
    taken = yield from claim_batch_now(context, n, lease, on_invalid)
    return None if taken is None else taken.items


@dataclass(slots=True)
class BatchClaim(Generic[M]):
    """Result of a claim of many.

    Attributes:
        items: the claimed items, in the order of claims.
        lapsed: true when items with expired leases were left in the queue.
        screened: the number of other items that did not match the filter, and were settled.
        seconds: the duration of the claim.
    """

    items: list[Item[M]]
    lapsed: bool = False
    screened: int = 0
    seconds: float = 0.0


def claim_batch_now(
    context: QueueContext[M],
    n: int,
    lease: timedelta | None,
    on_invalid: OnInvalid,
    *,
    sparing: bool = False,
    screen: ItemFilter | None = None,
) -> Flow[BatchClaim[M] | None]:
    """Claim up to ``n`` items that are eligible now; ``None`` when there are none.

    With ``sparing``, items with expired leases stay where they are, because they may have killed their holders. All
    claimed items are then marked as parts of a batch, even a single one: it will run beside others.

    With a ``screen``, items that do not match it are settled as it defines.
    """
    where = None if screen is None else screen.where
    while not context.state.paused:
        held_up = sparing and time.monotonic() < context.state.held_up
        first = yield from (read_fresh_candidates if held_up else read_candidates)(
            context, n, remembered=screen is not None
        )
        if first is None:
            return BatchClaim([], lapsed=True) if held_up else None
        if not first:
            one = yield from reserve_now(context, lease, on_invalid)
            if one is None or screen is None or (yield from is_kept(context, screen, one)):
                return BatchClaim([one]) if one else None
            return BatchClaim([], screened=1)
        claim = ClaimOfMany.of(context, first, lease or context.settings.lease, sparing=sparing, where=where)
        others = (yield from settle_unmatched(claim, screen)) if screen else 0
        items = yield from _decode(claim, (yield from send_claim(claim, len(first) - others)), on_invalid)
        items = yield from _renew_leases(claim, items)
        # No candidate matched, so probably more unmatched items follow; a larger pass settles them faster.
        if screen and others == len(first) < MAX_CLAIM:
            others += yield from _settle_unmatched_head(context, screen)
        if items or claim.lapsed or others:
            context.count("reserve", len(items))
            return BatchClaim(items, bool(claim.lapsed), others)
    return None


def _settle_unmatched_head(context: QueueContext[Any], screen: ItemFilter) -> Flow[int]:
    """Settle unmatched items among many candidates, without a claim: a small claim would meet few of them."""
    first = yield from read_candidates(context, MAX_CLAIM, remembered=True)
    if not first:
        return 0
    claim = ClaimOfMany.of(context, first, context.settings.lease, where=screen.where)
    return (yield from settle_unmatched(claim, screen))


def claim_some(context: QueueContext[Any], n: int, lease: timedelta) -> Flow[list[Item[Any]]]:
    """Claim up to ``n`` items, undecoded, for ``n`` callers; none when the queue is empty."""
    while not context.state.paused:
        prefetch = context.state.prefetch
        prefetch.here()
        whole = yield from read_head(context, n)
        if whole.empty and (yield from has_items_before_bound(context)):
            continue
        if whole.untouched:
            claim = ClaimOfMany.of_untouched(context, whole.untouched, lease)
        else:
            first = whole.documents or (None if whole.empty else (yield from _read_others(context, n)))
            if first is None:
                return []
            if not first:
                with prefetch.claims_one():
                    one = yield from claim_one(context, lease)
                return [one] if one else []
            claim = ClaimOfMany.of(context, first, lease)
        prefetch.begin_claim(claim.ids)
        try:
            if whole.untouched or whole.documents:
                yield from begin_read_ahead(context, n)
            items = yield from _renew_leases(claim, (yield from send_claim(claim, len(claim.ids))))
        finally:
            prefetch.end_claim(claim.ids)
        if items:
            return items
    return []


def _read_others(context: QueueContext[Any], n: int) -> Flow[list[Document] | None]:
    """Read the items that may be claimed together, without items that other claims of this process are about to take.

    If none of the read items is left, the result is empty. Then a claim of a single item finds out whether there are
    more.
    """
    prefetch = context.state.prefetch
    read = yield from read_candidates(context, n + len(prefetch.claimed_keys))
    return read and [document for document in read if id_key(document["_id"]) not in prefetch.claimed_keys][:n]


def send_claim(claim: ClaimOfMany, tried: int, *, projection: Mapping[str, Any] | None = None) -> Flow[list[Item[Any]]]:
    """Send the claim, and return its items in the order of claims; ``tried`` is the number of candidates present.

    The items are read back, unless the claim knows all of its candidates. Sent again after a lost reply, the claim
    counts nothing twice: its items are no longer eligible. With a ``projection`` only these fields are read back.
    """
    if tried <= 0:
        return []
    prefetch = claim.context.state.prefetch
    single = prefetch.single
    number, again = yield from _send_or_give_back(claim)
    if claim.untouched:
        if number == tried and not again and (all_of_them := claim.make_untouched_items()):
            return all_of_them
        # Fewer items than expected, and no claim of a single item in this process has taken them.
        if not prefetch.singles and single is prefetch.single:
            # Another process claims or removes items that were read ahead: stop reading ahead for a while.
            prefetch.close(time.monotonic())
    if claim.sparing and projection is None:
        items, all_read = yield from _read_bounded(claim)
        if not all_read:
            # Items that cannot be returned to the caller are left to the next claim.
            return list(items.values())
    else:
        items = claim.items((yield from _read_back(claim, list(claim.ids.values()), projection)))
    if not claim.untouched and claim.context.state.prefetch.is_filled:
        claim.context.state.prefetch.remove(items)
    if len(items) == tried:
        claim.context.state.contention.tried(tried, 0)
    else:
        rest = [id for key, id in claim.ids.items() if key not in items]
        others = yield from _claim_leftovers(claim, rest, tried, alone=not items and not claim.beside)
        if len(items) == 1 and not others and not claim.is_beside:
            yield from _unmark(claim, *items.values())
        items |= {id_key(item.id): item for item in others}
    return [items[key] for key in claim.ids if key in items]


def _send_or_give_back(claim: ClaimOfMany) -> Flow[tuple[int, bool]]:
    """Send the claim as ``_send`` does, and give its items back if it fails."""
    try:
        return (yield from _send(claim))
    except ReplyLost:
        yield from retry_once(claim.give_back(claim.ids))
        raise
    except Refused:
        # The update fails on one item, and the reply does not name it: give all back, then try each item alone.
        yield from retry_once(claim.give_back(claim.ids))
        return 0, True
    except Exception as error:
        if getattr(error, "code", None) is not None:
            # The server reports the error, and may have done a part of the update.
            with suppress(Exception):
                yield from retry_once(claim.give_back(claim.ids))
        raise


def _send(claim: ClaimOfMany) -> Flow[tuple[int, bool]]:
    """Send the claim until there is a reply, and return whether a reply was lost; decode untouched items meanwhile."""
    command, batchers = claim.command(), claim.context.broker.batchers
    if not claim.untouched or batchers is None or not batchers.divides:
        return (yield from retry_and_report(command.__iter__))
    begun = yield from Begin(command)
    claim.decode_untouched()
    return (yield from retry_and_report(command.__iter__, begun))


def _unmark(claim: ClaimOfMany, item: Item[Any]) -> Flow[None]:
    """Remove the mark of a batch from an item that is returned alone: no other item can kill its holder.

    A crash before it gives the item one run more.
    """
    filter = {"_id": item.id, "token": claim.token, "batch": claim.token}
    update = {"$unset": {"batch": ""}}
    unmark: Command[Any] = Command(
        "update_one", {"filter": filter, "update": update}, undo=lambda _: claim.give_back(claim.ids)
    )
    yield from retry_until_reply(unmark)


def _read_back(claim: ClaimOfMany, ids: list[Any], projection: Mapping[str, Any] | None) -> Flow[list[Document]]:
    """Read the items that the claim holds; an undecodable one is found by halving, and buried."""
    filter = {"_id": {"$in": ids}, "token": claim.token}
    try:
        return (yield from find_few(claim.context.broker, filter, [("_id", 1)], len(ids), projection=projection))
    except Unreadable:
        if len(ids) == 1:
            yield from foreign.bury_unreadable(claim.context, _id=ids[0], token=claim.token)
            return []
        half = len(ids) // 2
        first = yield from _read_back(claim, ids[:half], projection)
        return first + (yield from _read_back(claim, ids[half:], projection))


def _read_bounded(claim: ClaimOfMany) -> Flow[tuple[dict[Any, Item[Any]], bool]]:
    """Read the items that a worker's claim holds, up to one reply (16 MB); the rest is given back unread.

    The size of the items is not known before, and a worker must not hold thousands of large ones at once. The items
    that it keeps are the first in the order of claims. Also returns whether these are all items.
    """
    keys, ids, number = list(claim.ids), list(claim.ids.values()), len(claim.ids)
    try:
        while True:
            filter = {"_id": {"$in": ids[:number]}, "token": claim.token}
            documents, size, all_read = yield from find_sized(claim.context.broker, filter, [("_id", 1)], number)
            if all_read or number == 1:
                break
            # The reply held ``len(documents)`` items; halve at least, so that the loop ends after a few reads.
            number = max(min(len(documents), number // 2), 1)
    except Unreadable:
        return claim.items((yield from _read_back(claim, ids, None))), True
    if number < len(ids):
        yield from retry_once(claim.give_back(keys[number:]))
    items = claim.items(documents, size)
    return {key: items[key] for key in keys[:number] if key in items}, number == len(ids)


def _claim_leftovers(claim: ClaimOfMany, ids: list[Any], tried: int, *, alone: bool) -> Flow[list[Item[Any]]]:
    """Handle candidates that the claim did not take and that no other caller has taken by now.

    An item without runs left is buried. But a neighbour may have killed the holder of a batch, so the items of that
    batch get one more run, alone: the first of them if nothing else was claimed, else they go after the ready items.
    """
    context = claim.context
    fields: dict[str, Any] = dict.fromkeys(("attempts", "batch", "pushed", "token", "when"), 1)
    found = yield from find_few(context.broker, claim.filter(ids), ORDER, len(ids), projection=fields)
    others = len(claim.ids) - tried
    if not claim.untouched:  # untouched items may be an old read: missing ones do not mean that others compete now
        context.state.contention.tried(tried, max(len(ids) - others - len(found), 0))
    is_spent = context.settings.is_spent
    if claim.sparing:
        found = _set_lapsed_aside(claim, found)
    suspects = [document for document in found if is_spent(attempts_of(document)) and is_suspect(document)]
    together = claim.is_beside or sum(not is_spent(attempts_of(document)) for document in found) > (1 if alone else 0)
    items = []
    for document in found:
        spent = is_spent(attempts_of(document))
        if spent and is_suspect(document):
            continue
        if item := (yield from _claim_or_bury(claim, document, together=together and not spent)):
            items.append(item)
    if suspects and alone and not items:
        item = yield from _claim_or_bury(claim, suspects[0], together=False)
        return [item] if item else []
    if suspects:
        # They keep their old token, which shows that they were parts of a batch.
        update = {"$set": {"when": claim.now}}
        ids = [document["_id"] for document in suspects]
        yield from retry_until_reply(Command("update_many", {"filter": claim.filter(ids), "update": update}))
    return items


def _set_lapsed_aside(claim: ClaimOfMany, found: list[Document]) -> list[Document]:
    """Leave out items that must not run beside others; an item without runs left that ran alone last is buried."""
    rest = []
    for document in found:
        spent = claim.context.settings.is_spent(attempts_of(document))
        if is_suspect(document) if spent else "token" in document:
            claim.lapsed.append(document["_id"])
        else:
            rest.append(document)
    return rest


def _claim_or_bury(claim: ClaimOfMany, found: Document, *, together: bool) -> Flow[Item[Any] | None]:
    """Claim one item by its id (``findAndModify``); bury it if it has no runs left, or if its attempts are no number.

    With ``together`` it may be returned with other items, and one of them may kill the holder.
    """
    mine = {**claim.mine, "batch": claim.token} if together else claim.mine
    if claim.noting:
        mine = {**mine, "pushed": entry_time(found)}
    command: Command[Any] = Command(
        "find_one_and_update",
        {
            "filter": claim.filter([found["_id"]]),
            "update": {"$set": mine, "$inc": {"attempts": 1}},
        },
        undo=lambda _: claim.give_back(claim.ids),
    )
    try:
        before = yield from command
    except Refused:
        if not (yield from foreign.bury_uncountable(claim.context)):
            raise
        return None
    if before is None:
        return None
    (item,) = claim.items([{**before, **mine, "attempts": attempts_of(before) + 1}]).values()
    if not claim.context.settings.is_spent(attempts_of(before)) or is_suspect(before):
        return item
    yield from bury_exhausted(claim.context, item)
    return None


def _decode(claim: ClaimOfMany, items: list[Item[Any]], on_invalid: OnInvalid) -> Flow[list[Item[Any]]]:
    """Bury items that do not fit the model; or raise at the first one, and only that item stays reserved."""
    context, decoded = claim.context, []
    if context.codec.untyped:
        return items
    for item in items:
        try:
            decoded.append(context.decoded(item))
        except PayloadInvalid as invalid:
            if on_invalid == "raise" or context.settings.dead is None:
                others = [id_key(other.id) for other in items if other is not item]
                if others:
                    yield from retry_once(claim.give_back(others))
            yield from refuse_or_bury(context, item, invalid, on_invalid)
    return decoded


def _renew_leases(claim: ClaimOfMany, items: list[Item[Any]]) -> Flow[list[Item[Any]]]:
    """Restart the leases when burials among the items have used up half of them; lost items are left out."""
    context, lease = claim.context, claim.mine["when"] - claim.now
    now = context.broker.clock.now()
    if not items or now < claim.now + lease / 2:
        return items
    held = {"_id": {"$in": [item.id for item in items]}, "token": claim.token}
    update = {"$set": {"when": now + lease}}
    renew: Command[Any] = Command(
        "update_many", {"filter": held, "update": update}, undo=lambda _: claim.give_back(claim.ids)
    )
    yield from retry_until_reply(renew)
    found = yield from find_few(context.broker, held, [("_id", 1)], len(items), projection={"_id": 1})
    keys = {id_key(document["_id"]) for document in found}
    return [item.held_until(now + lease) for item in items if id_key(item.id) in keys]
