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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.core.base.find import close_cursor, find_few, find_head
from mongoq.core.base.first_due import has_items_before_bound, refresh_hints
from mongoq.core.base.retry import retry_and_report, retry_once, retry_until_reply
from mongoq.core.claim.judge import (
    bury_exhausted,
    bury_foreign,
    bury_uncountable,
    give_back_command,
    is_exhausted,
    is_suspect,
    start_or_expire,
    update_held,
)
from mongoq.core.command import Command, Refused, ReplyLost, Unreadable, number_matched
from mongoq.core.perform import perform
from mongoq.core.state.claim_hints import eligible
from mongoq.core.state.context import QueueContext
from mongoq.data.encoding.codec import UnreadableDocument
from mongoq.data.envelope import attempts_of, is_fresh
from mongoq.data.indexes import CLAIM_FIELDS, CLAIM_ORDER
from mongoq.data.item import Document, Item, id_key, id_keys
from mongoq.data.stream_claim import ENTRY_TIME, entry_time

UNTOUCHED_FILTER: Mapping[str, Any] = {"by": None, "key": None, "once": None}
"""Items that were never claimed and cannot be replaced have none of these (see above)."""
Fields = Mapping[str, int]
"""Projection of a find."""


# --- candidates ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidates:
    """Items that a claim tries to reserve, in the order of claims.

    Attributes:
        documents: the envelopes of the items, or only the fields of ``CLAIM_FIELDS``.
        untouched: all items were read whole and were never claimed: they are not read again.
        size: the average bytes of untouched items.
    """

    documents: Sequence[Document] = ()
    untouched: bool = False
    size: int = 0

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.documents)


async def read_candidates(
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
        ids = await read_ids(context, n, unreserved=unreserved, fields=fields)
        return None if ids is None else Candidates(ids)
    while True:
        await refresh_hints(context)
        start = state.claim_hints.start(context.name, context.broker.clock.now())
        try:
            head = await retry_once(find_head(context.broker, start.filter, CLAIM_ORDER, n))
        except Unreadable:  # a document of another program: a claim by its id finds it, and buries it
            break
        if head.cursor:  # the items are so large that one reply does not hold them
            await close_cursor(context.broker, head.cursor)
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
        if not (await has_items_before_bound(context)):
            return None
    state.read_ids_only()
    ids = await read_ids(context, n)
    return None if ids is None else Candidates(ids)


async def read_ids(
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
        read = await find_few(context.broker, filter, CLAIM_ORDER, n, projection=fields)
        return _select_ordinary(read) or None
    await refresh_hints(context)
    while True:
        now = context.broker.clock.now()
        start, skip = hints.start(context.name, now if due is None else min(due, now)), contention.skip(n)
        read = await find_few(context.broker, start.filter, CLAIM_ORDER, n, projection=fields, skip=skip)
        if not skip:
            hints.raise_bounds(start, read[0] if read else None)
        if read:
            return _select_ordinary(read)
        if skip:
            contention.beyond()
        elif not (await has_items_before_bound(context)):
            return None


def _select_ordinary(read: list[Document]) -> list[Document]:
    """Return the documents that can join a batch; another program's odd types are claimed one by one."""
    return [
        document
        for document in read
        if isinstance(document["when"], datetime) and not isinstance(document["_id"], dict)
    ]


# --- the claim -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchClaim:
    """One claim of many items.

    Attributes:
        context: the queue.
        candidates: the items that it tries to reserve.
        mine: the fields that the claim sets.
        now: the server's time of the claim; of a stream's claim, the time at which its items were eligible.
        skips_lapsed: the claim leaves items with an expired lease where they are.
        adds_to_token: other items were claimed under the same token before.
        writes_entry_time: the claim writes when each item came to its queue, into ``pushed`` (``entry_time``).
        where: a further condition on the items; items that do not match were settled before.
        ids: the ids, by ``id_key``, in the order of claims; other programs may have used any value as an id.
        dues: when each item became eligible, by ``id_key``. An item claimed and released by another process between
            the read and the update keeps the earlier date, and is released to that place.
        lapsed: items with an expired lease that the claim has left, as far as they were read; they have runs left.
        suspects: the same of items whose next death would bury them, although a neighbour may have killed the holder.
    """

    context: QueueContext[Any]
    candidates: Candidates
    mine: Mapping[str, Any]
    now: datetime
    skips_lapsed: bool = False
    adds_to_token: bool = False
    writes_entry_time: bool = False
    where: Mapping[str, Any] = field(default_factory=dict)
    ids: dict[Any, Any] = field(default_factory=dict)
    dues: dict[Any, datetime] = field(default_factory=dict)
    lapsed: list[Document] = field(default_factory=list)
    suspects: list[Document] = field(default_factory=list)

    def __post_init__(self) -> None:
        documents = self.candidates.documents
        for key, document in zip(id_keys([document["_id"] for document in documents]), documents, strict=True):
            if key not in self.ids:  # an item that was moved meanwhile was read twice
                self.ids[key], self.dues[key] = document["_id"], document["when"]

    @property
    def token(self) -> ObjectId:
        return self.mine["token"]  # type: ignore[no-any-return]

    @property
    def runs_with_others(self) -> bool:
        """True when its items run beside other items, even a single one."""
        return self.skips_lapsed or self.adds_to_token

    @property
    def marks(self) -> dict[str, Any]:
        """The fields that it sets on each item; alone, an item is not one of a batch."""
        return {**self.mine, "batch": self.token} if len(self.ids) > 1 or self.runs_with_others else {**self.mine}

    def filter(self, ids: Sequence[Any]) -> dict[str, Any]:
        """Return the filter of items that are still eligible, and are to be claimed."""
        return {"_id": {"$in": ids}, **eligible(self.context.name, self.now), **self.where}

    def command(self) -> Command[Any]:
        """Return the claim of all that have runs left."""
        most = self.context.settings.most_attempts
        filter = {
            **self.filter(list(self.ids.values())),
            **({} if most is None else {"attempts": {"$lt": most}}),
            **({"reserved": {"$ne": True}} if self.skips_lapsed else {}),
            **(UNTOUCHED_FILTER if self.candidates.untouched else {}),
        }
        update: Any = {"$set": self.marks, "$inc": {"attempts": 1}}
        if self.writes_entry_time:
            marks = {name: {"$literal": value} for name, value in self.marks.items()}
            update = [{"$set": {**marks, "attempts": {"$add": ["$attempts", 1]}, "pushed": ENTRY_TIME}}]
        arguments = {"filter": filter, "update": update}
        return Command("update_many", arguments, number_matched, undo=lambda _: self.give_back(), resolved=True)

    def give_back(self, keys: Iterable[Any] | None = None) -> Command[Any]:
        """Return the command that hands back what this claim holds of these, or of all its items, unused."""
        dues = [(self.ids[key], self.dues[key]) for key in (self.ids if keys is None else keys)]
        return give_back_command(self.context, self.token, dues, self.now)

    def items(self, documents: Sequence[Document], size: int = 0) -> dict[Any, Item[Any]]:
        """Return the items in envelopes that the claim holds, each of so many bytes, by the keys of their ids."""
        keys = id_keys([document["_id"] for document in documents])
        items = self.context.raw_items(documents, self.now, [self.dues[key] for key in keys])
        if size:
            for item in items:
                item._size = size  # noqa: SLF001
        return dict(zip(keys, items, strict=True))


async def send_claim(
    claim: BatchClaim, *, settled: int = 0, projection: Mapping[str, Any] | None = None
) -> list[Item[Any]]:
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
        number, again = await retry_and_report(partial(perform, claim.command()))
    except Exception as error:
        # An update that the server ends by an error may have done a part, which is given back.
        if isinstance(error, ReplyLost | Refused) or getattr(error, "code", None) is not None:
            with suppress(Exception):
                await retry_once(claim.give_back())
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
        items, all_read = await _read_items(claim, projection)
    if len(items) == tried:
        state.contention.record_batch(tried, 0)
    elif all_read:  # otherwise, items that cannot be returned to the caller are left to the next claim
        items |= await _claim_leftovers(claim, items, tried)
    return await start_or_expire(claim.context, [items[key] for key in claim.ids if key in items])


async def _read_items(claim: BatchClaim, projection: Mapping[str, Any] | None) -> tuple[dict[Any, Item[Any]], bool]:
    """Read the items that the claim holds, and bury undecodable ones. Also returns whether these are all.

    The size of the items is not known before, and a worker must not hold thousands of large ones at once: it reads one
    reply (16 MB), the first items in the order of claims, and the rest is given back unread.
    """
    keys, ids, broker = list(claim.ids), list(claim.ids.values()), claim.context.broker
    number = len(ids)
    try:
        while claim.skips_lapsed and not broker.serverless:
            filter = {"_id": {"$in": ids[:number]}, "token": claim.token}
            head = await retry_once(find_head(broker, filter, [("_id", 1)], number))
            if not head.cursor:
                if number < len(ids):
                    await retry_once(claim.give_back(keys[number:]))
                return claim.items(head.documents, head.size), number == len(ids)
            await close_cursor(broker, head.cursor)
            # Halve at least, so that the loop ends after a few reads.
            number = max(min(len(head.documents), number // 2), 1)
    except Unreadable:
        pass
    filter = {"_id": {"$in": ids}, "token": claim.token}
    read = await find_few(broker, filter, [("_id", 1)], len(ids), projection=projection, lenient=True)
    readable = [document for document in read if not isinstance(document, UnreadableDocument)]
    if projection is not None:  # it may leave out the token, by which items are settled
        readable = [{**document, "token": claim.token} for document in readable]
    items = claim.items(readable)
    if len(items) < len(read):  # what can be read of such a document may lack its id
        for document in await find_few(broker, filter, [("_id", 1)], len(ids), projection={"_id": 1}):
            if id_key(document["_id"]) not in items:
                await bury_foreign(claim.context, {"_id": document["_id"], "token": claim.token})
    return items, True


async def _claim_leftovers(claim: BatchClaim, items: Mapping[Any, Item[Any]], tried: int) -> dict[Any, Item[Any]]:
    """Handle candidates that the update did not reserve and that no other caller has taken by now.

    An item without runs left is buried. But a neighbour may have killed the holder of a batch, so the items of that
    batch get one more run, alone: the first of them if nothing else was claimed, else they go after the ready items.
    """
    context = claim.context
    alone = not items and not claim.adds_to_token
    ids = [id for key, id in claim.ids.items() if key not in items]
    fields: dict[str, Any] = dict.fromkeys(("attempts", "batch", "pushed", "token", "when"), 1)
    documents = await find_few(context.broker, claim.filter(ids), CLAIM_ORDER, len(ids), projection=fields)
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
        if item := (await claim_by_id(claim, document, together=joins)):
            more.append(item)
    if suspects and alone and not more:
        item = await claim_by_id(claim, suspects[0], together=False)
        return {id_key(item.id): item} if item else {}
    if suspects:
        # They keep their old token, which shows that they were parts of a batch.
        update = {"$set": {"when": claim.now}}
        ids = [document["_id"] for document in suspects]
        await retry_until_reply(Command("update_many", {"filter": claim.filter(ids), "update": update}))
    if len(items) == 1 and not more and not claim.runs_with_others:
        # The mark of a batch goes from an item that is returned alone: no other item can kill its holder. A crash
        # before it gives the item one run more.
        await update_held(context, list(items.values()), {"$unset": {"batch": ""}})
    return {id_key(item.id): item for item in more}


async def claim_by_id(
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
        before = await perform(command)
    except Refused:
        if not (await bury_uncountable(claim.context)):
            raise
        return None
    except Unreadable:
        await bury_foreign(claim.context, {"_id": document["_id"], "token": claim.token})
        return None
    if before is None:
        return None
    (item,) = claim.items([{**before, **mine, "attempts": attempts_of(before) + 1}]).values()
    if is_exhausted(claim.context, before):
        await bury_exhausted(claim.context, item)
        return None
    return item
