# Generated from mongoq/core/claim/batch_claim.py by scripts/unasync.py. Do not edit.
"""One claim of many items: one update of its candidates under a token, its undo, and the items that it reserved.

``send_claim`` sends the update and returns the items. Items that were read whole are not read again if the update found
all of them. Otherwise the items under the token are read, and each candidate that is left is claimed by its id, buried,
or put behind the others.

Candidates that were never claimed are read once, whole. A process that claims an item, or changes its payload or key,
leaves ``by`` on it for good. Two pushes do not: one that replaces the item of a ``key``, and one under a given id that
was removed before, which sets ``once``. An item with none of the three fields therefore still is what it was when it
was read, however long ago. A claim whose filter demands that the three are absent, and whose update found as many items
as it named, knows what it reserved. Of other candidates only the ids are read, from the index alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from mongoq.core.base.find import find_head
from mongoq.core.claim.batch_claim import BatchClaim, Candidates, Fields, _select_ordinary
from mongoq.core.claim.judge import is_exhausted, is_suspect
from mongoq.core.command import Command, Refused, ReplyLost, Unreadable
from mongoq.core.state.claim_hints import eligible
from mongoq.core.state.context import QueueContext
from mongoq.core_threads.base.find import close_cursor, find_few
from mongoq.core_threads.base.first_due import has_items_before_bound, refresh_hints
from mongoq.core_threads.base.retry import retry_and_report, retry_once, retry_until_reply
from mongoq.core_threads.claim.judge import bury_exhausted, bury_foreign, bury_uncountable, start_or_expire, update_held
from mongoq.core_threads.perform import perform
from mongoq.data.encoding.codec import UnreadableDocument
from mongoq.data.envelope import attempts_of, is_fresh
from mongoq.data.indexes import CLAIM_FIELDS, CLAIM_ORDER
from mongoq.data.item import Document, Item, id_key
from mongoq.data.stream_claim import entry_time

# --- candidates ----------------------------------------------------------------------------------


def read_candidates(
    context: QueueContext[Any], n: int, *, unreserved: bool = False, fields: Fields | None = None
) -> Candidates | None:
    """Read the first ``n`` items; ``None`` when nothing is eligible; empty when the caller must claim singly.

    Args:
        context: the queue.
        n: number of items, at most.
        unreserved: leave out items with expired leases, which may fill the head.
        fields: projection, if a filter of a consumer may settle some of the items.
    """
    state = context.state
    # Items are read whole where they are likely to be still the same when the claim arrives.
    beside_others = state.contention.width > 1
    if unreserved or fields or beside_others or context.broker.serverless or time.monotonic() < state.reads_whole_at:
        ids = read_ids(context, n, unreserved=unreserved, fields=fields)
        return None if ids is None else Candidates(ids)
    while True:
        refresh_hints(context)
        start = state.claim_hints.start(context.name, context.broker.clock.now())
        try:
            head = retry_once(find_head(context.broker, start.filter, CLAIM_ORDER, n))
        except Unreadable:  # a document of another program: a claim by its id finds it, and buries it
            break
        if head.cursor:  # the items are so large that one reply does not hold them
            close_cursor(context.broker, head.cursor)
            break
        documents = head.documents
        state.claim_hints.raise_bounds(start, documents[0] if documents else None)
        if documents:
            fresh = sum(map(is_fresh, documents))
            if fresh == len(documents):
                return Candidates(documents, untouched=True, size=head.size)
            if fresh * 2 < len(documents):
                state.read_ids_only()
            if ordinary := _select_ordinary(documents):
                return Candidates(ordinary)
            break
        if not (has_items_before_bound(context)):
            return None
    state.read_ids_only()
    ids = read_ids(context, n)
    return None if ids is None else Candidates(ids)


def read_ids(
    context: QueueContext[Any],
    n: int,
    *,
    unreserved: bool = False,
    fields: Fields | None = None,
    due: datetime | None = None,
) -> list[Document] | None:
    """Read the ids of the first ``n`` ordinary items (``find``), or of later ones when other processes claim as well.

    ``None`` when nothing is eligible, or nothing was at a time ``due``.
    """
    hints, contention = context.state.claim_hints, context.state.contention
    fields = fields or CLAIM_FIELDS
    if unreserved:
        filter = {**eligible(context.name, context.broker.clock.now()), "reserved": {"$ne": True}}
        read = find_few(context.broker, filter, CLAIM_ORDER, n, projection=fields)
        return _select_ordinary(read) or None
    refresh_hints(context)
    while True:
        now = context.broker.clock.now()
        start, skip = hints.start(context.name, now if due is None else min(due, now)), contention.skip(n)
        read = find_few(context.broker, start.filter, CLAIM_ORDER, n, projection=fields, skip=skip)
        if not skip:
            hints.raise_bounds(start, read[0] if read else None)
        if read:
            return _select_ordinary(read)
        if skip:
            contention.beyond()
        elif not (has_items_before_bound(context)):
            return None


# --- the claim -----------------------------------------------------------------------------------


def send_claim(claim: BatchClaim, *, settled: int = 0, projection: Mapping[str, Any] | None = None) -> list[Item[Any]]:
    """Send the claim, and return its items that may run, in the order of claims.

    Sent again after a lost reply, the claim counts nothing twice: its items are no longer eligible. With a
    ``projection`` only these fields are read back.

    Args:
        claim: the claim.
        settled: the number of candidates that were settled before.
        projection: the fields of items to read.
    """
    candidates, state, tried = claim.candidates, claim.context.state, len(claim.ids) - settled
    if tried <= 0:
        return []
    try:
        number, again = retry_and_report(partial(perform, claim.command()))
    except Exception as error:
        # An update that the server ends by an error may have done a part, which is given back.
        if isinstance(error, ReplyLost | Refused) or getattr(error, "code", None) is not None:
            with suppress(Exception):
                retry_once(claim.give_back())
        if not isinstance(error, Refused):
            raise
        number, again = 0, True  # it fails on one item, and the reply does not name it: each is then tried alone
    items: dict[Any, Item[Any]] = {}
    all_read = True
    if candidates.untouched and number == tried and not again:
        marks = {**claim.marks, "attempts": 1}
        items = claim.items([{**document, **marks} for document in candidates.documents], candidates.size)
    else:
        if candidates.untouched:  # another process claims or removes what was read
            state.read_ids_only()
        items, all_read = _read_items(claim, projection)
    if len(items) == tried:
        state.contention.record_batch(tried, 0)
    elif all_read:  # otherwise, items that cannot be returned to the caller are left to the next claim
        items |= _claim_leftovers(claim, items, tried)
    return start_or_expire(claim.context, [items[key] for key in claim.ids if key in items])


def _read_items(claim: BatchClaim, projection: Mapping[str, Any] | None) -> tuple[dict[Any, Item[Any]], bool]:
    """Read the items that the claim holds, and bury undecodable ones. Also returns whether these are all.

    The size of the items is not known before, and a worker must not hold thousands of large ones at once: it reads one
    reply (16 MB), the first items in the order of claims, and the rest is given back unread.
    """
    keys, ids, broker = list(claim.ids), list(claim.ids.values()), claim.context.broker
    number = len(ids)
    try:
        while claim.skips_lapsed and not broker.serverless:
            filter = {"_id": {"$in": ids[:number]}, "token": claim.token}
            head = retry_once(find_head(broker, filter, [("_id", 1)], number))
            if not head.cursor:
                if number < len(ids):
                    retry_once(claim.give_back(keys[number:]))
                return claim.items(head.documents, head.size), number == len(ids)
            close_cursor(broker, head.cursor)
            # Halve at least, so that the loop ends after a few reads.
            number = max(min(len(head.documents), number // 2), 1)
    except Unreadable:
        pass
    filter = {"_id": {"$in": ids}, "token": claim.token}
    read = find_few(broker, filter, [("_id", 1)], len(ids), projection=projection, lenient=True)
    readable = [document for document in read if not isinstance(document, UnreadableDocument)]
    if projection is not None:  # it may leave out the token, by which items are settled
        readable = [{**document, "token": claim.token} for document in readable]
    items = claim.items(readable)
    if len(items) < len(read):  # what can be read of such a document may lack its id
        for document in find_few(broker, filter, [("_id", 1)], len(ids), projection={"_id": 1}):
            if id_key(document["_id"]) not in items:
                bury_foreign(claim.context, {"_id": document["_id"], "token": claim.token})
    return items, True


def _claim_leftovers(claim: BatchClaim, items: Mapping[Any, Item[Any]], tried: int) -> dict[Any, Item[Any]]:
    """Handle candidates that the update did not reserve and that no other caller has taken by now.

    An item without runs left is buried. But a neighbour may have killed the holder of a batch, so the items of that
    batch get one more run, alone: the first of them if nothing else was claimed, else they go after the ready items.
    """
    context = claim.context
    alone = not items and not claim.adds_to_token
    ids = [id for key, id in claim.ids.items() if key not in items]
    fields: dict[str, Any] = dict.fromkeys(("attempts", "batch", "pushed", "token", "when"), 1)
    documents = find_few(context.broker, claim.filter(ids), CLAIM_ORDER, len(ids), projection=fields)
    if not claim.candidates.untouched:  # missing ones of an old read do not mean that others compete now
        context.state.contention.record_batch(tried, max(tried - len(items) - len(documents), 0))
    spent = [document for document in documents if context.settings.is_spent(attempts_of(document))]
    unspent = [document for document in documents if not context.settings.is_spent(attempts_of(document))]
    suspects = [document for document in spent if is_suspect(document)]
    exhausted = [document for document in spent if not is_suspect(document)]
    if claim.skips_lapsed:
        claim.lapsed.extend(document for document in unspent if "token" in document)
        claim.suspects.extend(suspects)
        unspent, suspects = [document for document in unspent if "token" not in document], []
    together = claim.runs_with_others or len(unspent) > alone
    more: list[Item[Any]] = []
    for document, joins in [*((each, together) for each in unspent), *((each, False) for each in exhausted)]:
        if item := (claim_by_id(claim, document, together=joins)):
            more.append(item)
    if suspects and alone and not more:
        item = claim_by_id(claim, suspects[0], together=False)
        return {id_key(item.id): item} if item else {}
    if suspects:
        # They keep their old token, which shows that they were parts of a batch.
        update = {"$set": {"when": claim.now}}
        ids = [document["_id"] for document in suspects]
        retry_until_reply(Command("update_many", {"filter": claim.filter(ids), "update": update}))
    if len(items) == 1 and not more and not claim.runs_with_others:
        # The mark of a batch goes from an item that is returned alone: no other item can kill its holder. A crash
        # before it gives the item one run more.
        update_held(context, list(items.values()), {"$unset": {"batch": ""}})
    return {id_key(item.id): item for item in more}


def claim_by_id(
    claim: BatchClaim, document: Document, *, together: bool, patience: float | None = None
) -> Item[Any] | None:
    """Claim one item by its id (``findAndModify``); bury it if it has no runs left, or if its attempts are no number.

    With ``together`` it may be returned with other items, and one of them may kill the holder. A transaction of a dead
    process may block the item: after ``patience`` seconds the claim raises ``Blocked``.
    """
    mine = {**claim.mine, "batch": claim.token} if together else claim.mine
    if claim.writes_entry_time:
        mine = {**mine, "pushed": entry_time(document)}
    command: Command[Any] = Command(
        "find_one_and_update",
        {
            "filter": claim.filter([document["_id"]]),
            "update": {"$set": mine, "$inc": {"attempts": 1}},
            **({} if patience is None or claim.context.broker.serverless else {"maxTimeMS": int(patience * 1000)}),
        },
        undo=lambda _: claim.give_back(),
    )
    try:
        before = perform(command)
    except Refused:
        if not (bury_uncountable(claim.context)):
            raise
        return None
    except Unreadable:
        bury_foreign(claim.context, {"_id": document["_id"], "token": claim.token})
        return None
    if before is None:
        return None
    (item,) = claim.items([{**before, **mine, "attempts": attempts_of(before) + 1}]).values()
    if is_exhausted(claim.context, before):
        bury_exhausted(claim.context, item)
        return None
    return item
