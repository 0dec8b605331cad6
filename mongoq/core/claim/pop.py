"""Pop: remove the first eligible item from its queue without a reservation, by one findAndModify.

What one command cannot do is done by two: the item is reserved, judged and committed. The command refuses such items:
one with a remembered id, which leaves a stub; one with a place in a sequence, or a letter that has died with one, in
whose transaction the next item follows; one that has expired, or had all its runs. An item that was removed, and is to
be buried, is put back first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.core.base.queue_settings import ensure_ready, refresh_settings
from mongoq.core.claim.judge import OnInvalid, check_on_invalid, decode_items, raise_misfit, raises_invalid
from mongoq.core.claim.reserve import claim_first, claim_one, undo_claim
from mongoq.core.command import LOST, Command, Duplicate, Refused
from mongoq.core.perform import perform
from mongoq.core.settle.send import settle_item
from mongoq.core.settle.settle import HISTORY_FIELDS, history_update, make_commit
from mongoq.core.settle.settlement import Batch, Settlement
from mongoq.core.state.context import QueueContext
from mongoq.data.encoding.codec import UnreadableDocument
from mongoq.data.envelope import attempts_of, expiry, new_id
from mongoq.data.indexes import CLAIM_ORDER
from mongoq.data.item import Item
from mongoq.data.sequence import held_target
from mongoq.errors import PayloadInvalid, ReservationLost

M = TypeVar("M")


class _ReserveFirst(Exception):
    """The first item of the queue is to be reserved: one command cannot remove it, or it is to be buried."""


async def pop(context: QueueContext[M], *, on_invalid: OnInvalid) -> Item[M] | None:
    """Remove the first eligible item from the queue, and return it: at most once."""
    check_on_invalid(on_invalid)
    await ensure_ready(context)
    state = context.state
    # Once a remembered id was met, more are likely: no delete, which the server would log as refused, is sent then.
    if not (state.ordered or context.broker.serverless or time.monotonic() < state.remembers_until):
        try:
            popped = await claim_first(context, partial(_remove_head, context, on_invalid))
        except _ReserveFirst:
            await refresh_settings(context)  # they say whether a letter is to hold its sequence
        else:
            if popped is not None:
                context.count("get")
            return popped
    return await _reserve_and_commit(context, on_invalid)


async def _reserve_and_commit(context: QueueContext[M], on_invalid: OnInvalid) -> Item[M] | None:
    """Claim the first item that may run, and settle it before the caller gets it.

    A crash before the settlement leaves it reserved until the lease ends.
    """
    lease = context.settings.lease

    def make(context: QueueContext[Any], item: Item[Any], batch: Batch) -> Settlement:
        return replace(make_commit(context, item, batch), event="get", answer=batch.now)

    while True:
        until = context.broker.clock.now() + lease

        def undo(token: ObjectId, before: Any, until: datetime = until) -> Command[Any] | None:
            """Put the item back, whether it is still reserved, or settled by now.

            After the end of its lease another consumer may have settled it: then only a reservation is given back. So
            it is of an item in a sequence, whose next item may have followed.
            """
            is_over = context.broker.clock.now() >= until
            if before is None or is_over or "place" in before or held_target(before) is not None:
                return undo_claim(token, before)
            filter = {"_id": before["_id"], "$or": [{"token": token}, {"settled": token}]}
            return Command("replace_one", {"filter": filter, "replacement": before, "upsert": True})

        item = await claim_one(context, lease, undo)
        if item is None:
            return None
        if expiry(item.read_at, None, item.once) is not None:
            context.state.expect_remembered()
        is_raised = raises_invalid(context, on_invalid)  # then it leaves its queue all the same
        decoded = [item] if is_raised else await decode_items(context, [item], on_invalid)
        if not decoded:
            continue
        try:
            settled_at: datetime = await settle_item(context, item, make)
        except ReservationLost as lost:
            if not lost.certain:
                raise
            continue  # its lease was over
        fields = {**item._document, "reserved": False, "token": None, "processed": settled_at}  # noqa: SLF001
        popped: Item[Any] = context.raw_item(fields, settled_at, due=item.due)
        if not is_raised:
            return popped.with_payload(decoded[0].payload)
        try:
            return context.decode_payload(popped)
        except PayloadInvalid as invalid:
            raise_misfit(popped, invalid)


async def _remove_head(context: QueueContext[M], on_invalid: OnInvalid) -> Item[M] | None:
    """Settle the head of the queue in one command: it is deleted, or becomes history.

    A lost reply loses the item, as "at most once" allows. The reply stays undecoded bytes, so that a document that
    cannot be decoded is not lost. A crash before an item is put back loses it as well, as any crash after a pop does.

    Raises:
        _ReserveFirst: the server has refused the item, or it was put back to be buried.
    """
    token, opened, by = new_id(), context.broker.encoding.read_reply, str(context.broker.identity)
    now, history = context.broker.clock.now(), context.settings.history
    start = context.state.claim_hints.start(context.name, now)
    where = {"q": context.name, "processed": now, "settled": token}
    # The filter is true, or an error of an item that is to be reserved first: a false one would pass over it, and take
    # a later one. It costs about a tenth: 0.99 ms for a pop with it, 0.89 ms without (MongoDB 6.0.5).
    refused: list[dict[str, Any]] = [{"$gt": ["$once", now]}]
    refused += ({"$ne": [{"$type": field}, "missing"]} for field in ("$place", "$origin.place"))
    refused.append({"$and": [{"$eq": [{"$type": "$start_by"}, "date"]}, {"$lte": ["$start_by", now]}]})
    if (most := context.settings.most_attempts) is not None:
        refused.append({"$gte": ["$attempts", most]})
    fits = {"$expr": {"$divide": [1, {"$cond": [{"$or": refused}, 0, 1]}]}}
    arguments: dict[str, Any] = {"filter": {**start.filter, **fits}, "sort": CLAIM_ORDER}
    if history is not None:
        marks = {"processed": now, "expires": now + history, "settled": token, "by": by}
        arguments["update"] = history_update(marks, attempts=1)

    def undo(raw: RawBSONDocument | None) -> Command[Any] | None:
        return None if raw is None or raw is LOST else _restore_command(raw, where)

    method = "find_one_and_delete" if history is None else "find_one_and_update"
    try:
        raw = await perform(Command[Any](method, arguments, undo=undo, target="bytes"))
    except Refused as refusal:
        raise _ReserveFirst from refusal
    before = opened(raw)
    if not isinstance(before, UnreadableDocument):
        context.state.claim_hints.raise_bounds(start, before)
        if before is None:
            return None
        attempts = attempts_of(before) + 1
        fields = {**before, "reserved": False, "token": None, "attempts": attempts, "by": by, "processed": now}
        popped: Item[Any] = context.raw_item(fields, now, due=before["when"])
        try:
            return context.decode_payload(popped)
        except PayloadInvalid as invalid:
            if raises_invalid(context, on_invalid):
                raise_misfit(popped, invalid)
    # An item that was pushed under its key or its id meanwhile stays. In history the id is still its own.
    for without in ((), ("key",), ("key", "_id")):
        try:
            await perform(_restore_command(raw, where, without))
        except Duplicate:
            if "_id" in without:
                raise
        else:
            break
    raise _ReserveFirst


def _restore_command(raw: RawBSONDocument, where: Mapping[str, Any], without: Sequence[str] = ()) -> Command[Any]:
    """Return the command that stores a popped document as its bytes, in place of the history that it left, if any.

    ``without`` its key, or its id, for which it gets a new one. The command has nothing to give back, nor has the pop.
    """
    stages: list[dict[str, Any]] = [{"$replaceWith": {"$literal": raw}}]
    stages.append({"$unset": [*HISTORY_FIELDS, *(name for name in without if name != "_id")]})
    if "_id" in without:
        stages.append({"$set": {"_id": new_id()}})
    # Sent twice, it could store the item again after another caller has popped it.
    arguments = {"filter": where, "update": stages, "upsert": True}
    return Command("update_one", arguments, undo=lambda _: None, fenced=False)
