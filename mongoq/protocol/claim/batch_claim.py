"""One claim of many items: one update of its candidates under a token, its undo, and the items that it reserved.

``send_claim`` sends the update and returns the items. Items that were read whole are not read again if the update found
all of them. Otherwise the items under the token are read, and each candidate that is left is claimed by its id, buried,
or put behind the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.model.envelope import Document, attempts_of
from mongoq.model.indexes import CLAIM_ORDER
from mongoq.model.item import Item, id_key, id_keys
from mongoq.model.stream_claim import ENTRY_TIME, entry_time
from mongoq.protocol.base.find import close_cursor, find_few, find_head
from mongoq.protocol.base.retry import retry_and_report, retry_once, retry_until_reply
from mongoq.protocol.base.statements import Statement
from mongoq.protocol.claim import foreign
from mongoq.protocol.claim.candidates import Candidates
from mongoq.protocol.claim.expiry import start_or_expire
from mongoq.protocol.claim.reserve import bury_exhausted, is_suspect
from mongoq.protocol.flow import Command, Flow, Refused, ReplyLost, Unreadable, number_matched
from mongoq.protocol.settle.settle import release_update
from mongoq.protocol.settle.settlement import make_statement
from mongoq.protocol.state.claim_hints import eligible
from mongoq.protocol.state.context import QueueContext

UNTOUCHED_FILTER: Mapping[str, Any] = {"by": None, "key": None, "once": None}
"""Items that were never claimed and cannot be replaced have none of these (``mongoq.protocol.claim.candidates``)."""
MAX_ATTEMPTS = 2**31
"""Attempts from this on cannot be counted in an int32; other programs may have written any value."""


def give_back_command(
    context: QueueContext[Any], token: ObjectId | None, dues: Iterable[tuple[Any, datetime]], now: datetime
) -> Command[Any]:
    """Return the command that hands back unused what the token holds of some items, given their ids and due dates."""
    if context.broker.serverless:
        filter = {"_id": {"$in": [id for id, _ in dues]}, "token": token}
        return Command("update_many", {"filter": filter, "update": release_update(now)})
    places: dict[datetime, list[Any]] = {}
    for id, due in dues:
        places.setdefault(due, []).append(id)
    requests: list[Statement] = [make_statement(token, ids, release_update(when)) for when, ids in places.items()]
    return Command("bulk_write", {"requests": requests, "ordered": False})


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

    def filter(self, ids: Sequence[Any]) -> dict[str, Any]:
        """Return the filter of items that are still eligible, and are to be claimed."""
        return {**self.eligible_filter(ids), **self.where}

    def eligible_filter(self, ids: Sequence[Any]) -> dict[str, Any]:
        """Return the filter of items that are still eligible."""
        return {"_id": {"$in": ids}, **eligible(self.context.name, self.now)}

    def command(self) -> Command[Any]:
        """Return the claim of all that have runs left; alone, an item is not one of a batch."""
        most = self.context.settings.most_attempts
        condition = {"reserved": {"$ne": True}} if self.skips_lapsed else {}
        return Command(
            "update_many",
            {
                "filter": {
                    **self.filter(list(self.ids.values())),
                    "attempts": {"$lt": MAX_ATTEMPTS if most is None else most},
                    **condition,
                    **(UNTOUCHED_FILTER if self.candidates.untouched else {}),
                },
                "update": self._update,
            },
            number_matched,
            undo=lambda _: self.give_back(self.ids),
            resolved=True,
        )

    @property
    def _update(self) -> Any:
        if not self.writes_entry_time:
            return {"$set": self._marks, "$inc": {"attempts": 1}}
        marks = {name: {"$literal": value} for name, value in self._marks.items()}
        return [{"$set": {**marks, "attempts": {"$add": ["$attempts", 1]}, "pushed": ENTRY_TIME}}]

    @property
    def _marks(self) -> dict[str, Any]:
        return {**self.mine, "batch": self.token} if len(self.ids) > 1 or self.runs_with_others else {**self.mine}

    def give_back(self, keys: Iterable[Any]) -> Command[Any]:
        """Return the command that hands back what this claim holds of these, unused."""
        return give_back_command(self.context, self.token, [(self.ids[key], self.dues[key]) for key in keys], self.now)

    def make_untouched_items(self) -> dict[Any, Item[Any]]:
        """Return untouched items as they are once the claim has all of them."""
        marks = {**self._marks, "attempts": 1}
        documents = [{**document, **marks} for document in self.candidates.documents]
        return self.items(documents, self.candidates.size)

    def items(self, documents: Sequence[Document], size: int = 0) -> dict[Any, Item[Any]]:
        """Return the items in envelopes that the claim holds, each of so many bytes, by the keys of their ids."""
        keys = id_keys([document["_id"] for document in documents])
        items = self.context.raw_items(documents, self.now, [self.dues[key] for key in keys])
        if size:
            for item in items:
                item._size = size  # noqa: SLF001
        return dict(zip(keys, items, strict=True))


def send_claim(claim: BatchClaim, tried: int, *, projection: Mapping[str, Any] | None = None) -> Flow[list[Item[Any]]]:
    """Send the claim, and return its items in the order of claims; ``tried`` is the number of candidates present.

    Items that were not started in time are settled instead (``expiry``), so there may be none although some were found.

    Sent again after a lost reply, the claim counts nothing twice: its items are no longer eligible. With a
    ``projection`` only these fields are read back.
    """
    if tried <= 0:
        return []
    number, again = yield from _send(claim)
    untouched = claim.candidates.untouched
    all_known = untouched and number == tried and not again
    items, all_read = claim.make_untouched_items() if all_known else {}, True
    if untouched and not items:  # somebody else claims or removes what was read
        claim.context.state.read_ids_only()
    if not items:
        items, all_read = yield from _read_items(claim, projection)
    if len(items) == tried:
        claim.context.state.contention.record_batch(tried, 0)
    elif all_read:  # otherwise, items that cannot be returned to the caller are left to the next claim
        items |= yield from _claim_leftovers(claim, items, tried)
    claimed = [items[key] for key in claim.ids if key in items]
    return (yield from start_or_expire(claim.context, claimed, claim.token, partial(claim.give_back, claim.ids)))


def _send(claim: BatchClaim) -> Flow[tuple[int, bool]]:
    """Send the claim until there is a reply, and return whether one was lost; if it fails, give its items back."""
    try:
        return (yield from retry_and_report(claim.command().__iter__))
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


def _read_items(claim: BatchClaim, projection: Mapping[str, Any] | None) -> Flow[tuple[dict[Any, Item[Any]], bool]]:
    """Read the items that the claim holds. Also returns whether these are all.

    The size of the items is not known before, and a worker must not hold thousands of large ones at once: it reads one
    reply (16 MB), the first items in the order of claims, and the rest is given back unread.
    """
    keys, ids, broker = list(claim.ids), list(claim.ids.values()), claim.context.broker
    if not claim.skips_lapsed or broker.serverless:
        return claim.items((yield from _read_by_ids(claim, ids, projection))), True
    number = len(ids)
    try:
        while True:
            filter = {"_id": {"$in": ids[:number]}, "token": claim.token}
            head = yield from retry_once(find_head(broker, filter, [("_id", 1)], number))
            if not head.cursor:
                break
            yield from close_cursor(broker, head.cursor)
            # Halve at least, so that the loop ends after a few reads.
            number = max(min(len(head.documents), number // 2), 1)
    except Unreadable:
        return claim.items((yield from _read_by_ids(claim, ids, None))), True
    if number < len(ids):
        yield from retry_once(claim.give_back(keys[number:]))
    items = claim.items(head.documents, head.size)
    return {key: items[key] for key in keys[:number] if key in items}, number == len(ids)


def _read_by_ids(claim: BatchClaim, ids: list[Any], projection: Mapping[str, Any] | None) -> Flow[list[Document]]:
    """Read the items that the claim holds; an undecodable one is found by halving, and buried."""
    filter = {"_id": {"$in": ids}, "token": claim.token}
    try:
        return (yield from find_few(claim.context.broker, filter, [("_id", 1)], len(ids), projection=projection))
    except Unreadable:
        if len(ids) == 1:
            yield from foreign.bury_unreadable(claim.context, _id=ids[0], token=claim.token)
            return []
        half = len(ids) // 2
        first = yield from _read_by_ids(claim, ids[:half], projection)
        return first + (yield from _read_by_ids(claim, ids[half:], projection))


def _claim_leftovers(claim: BatchClaim, items: Mapping[Any, Item[Any]], tried: int) -> Flow[dict[Any, Item[Any]]]:
    """Handle candidates that the update did not reserve and that no other caller has taken by now.

    An item without runs left is buried. But a neighbour may have killed the holder of a batch, so the items of that
    batch get one more run, alone: the first of them if nothing else was claimed, else they go after the ready items.
    """
    context, is_spent = claim.context, claim.context.settings.is_spent
    alone = not items and not claim.adds_to_token
    ids = [id for key, id in claim.ids.items() if key not in items]
    fields: dict[str, Any] = dict.fromkeys(("attempts", "batch", "pushed", "token", "when"), 1)
    documents = yield from find_few(context.broker, claim.filter(ids), CLAIM_ORDER, len(ids), projection=fields)
    if not claim.candidates.untouched:  # missing ones of an old read do not mean that others compete now
        context.state.contention.record_batch(tried, max(tried - len(items) - len(documents), 0))
    if claim.skips_lapsed:
        documents = _set_lapsed_aside(claim, documents)
    suspects = [document for document in documents if is_spent(attempts_of(document)) and is_suspect(document)]
    claimable = sum(not is_spent(attempts_of(document)) for document in documents)
    together = claim.runs_with_others or claimable > (1 if alone else 0)
    more: list[Item[Any]] = []
    for document in documents:
        spent = is_spent(attempts_of(document))
        if spent and is_suspect(document):
            continue
        if item := (yield from claim_by_id(claim, document, together=together and not spent)):
            more.append(item)
    if suspects and alone and not more:
        item = yield from claim_by_id(claim, suspects[0], together=False)
        return {id_key(item.id): item} if item else {}
    if suspects:
        # They keep their old token, which shows that they were parts of a batch.
        update = {"$set": {"when": claim.now}}
        ids = [document["_id"] for document in suspects]
        yield from retry_until_reply(Command("update_many", {"filter": claim.filter(ids), "update": update}))
    if len(items) == 1 and not more and not claim.runs_with_others:
        yield from _unmark(claim, *items.values())
    return {id_key(item.id): item for item in more}


def _set_lapsed_aside(claim: BatchClaim, documents: list[Document]) -> list[Document]:
    """Leave out items with expired leases; an item without runs left that ran alone last is buried."""
    rest: list[Document] = []
    for document in documents:
        if claim.context.settings.is_spent(attempts_of(document)):
            (claim.suspects if is_suspect(document) else rest).append(document)
        else:
            (claim.lapsed if "token" in document else rest).append(document)
    return rest


def claim_by_id(
    claim: BatchClaim, document: Document, *, together: bool, patience: float | None = None
) -> Flow[Item[Any] | None]:
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
        undo=lambda _: claim.give_back(claim.ids),
    )
    try:
        before = yield from command
    except Refused:
        if not (yield from foreign.bury_uncountable(claim.context)):
            raise
        return None
    except Unreadable:
        yield from foreign.bury_unreadable(claim.context, _id=document["_id"], token=claim.token)
        return None
    if before is None:
        return None
    (item,) = claim.items([{**before, **mine, "attempts": attempts_of(before) + 1}]).values()
    if not claim.context.settings.is_spent(attempts_of(before)) or is_suspect(before):
        return item
    yield from bury_exhausted(claim.context, item)
    return None


def _unmark(claim: BatchClaim, item: Item[Any]) -> Flow[None]:
    """Remove the mark of a batch from an item that is returned alone: no other item can kill its holder.

    A crash before it gives the item one run more.
    """
    filter = {"_id": item.id, "token": claim.token, "batch": claim.token}
    update = {"$unset": {"batch": ""}}
    unmark: Command[Any] = Command(
        "update_one", {"filter": filter, "update": update}, undo=lambda _: claim.give_back(claim.ids)
    )
    yield from retry_until_reply(unmark)
