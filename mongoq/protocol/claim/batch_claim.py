"""One claim of many items: its candidates, its update, and its undo."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from operator import itemgetter
from typing import Any

from bson import ObjectId

from mongoq.model.clock import time_of
from mongoq.model.encoding.ids import new_id
from mongoq.model.envelope import Document
from mongoq.model.item import Item, id_keys
from mongoq.model.raw import RawEnvelope, opened
from mongoq.model.stream_claim import ENTRY
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.first_due import ORDER, has_items_before_bound, refresh_hints
from mongoq.protocol.flow import Command, Flow, number_matched
from mongoq.protocol.settle.bulk import Statement, make_statement
from mongoq.protocol.settle.settle import release_update
from mongoq.protocol.state.claim_hints import eligible
from mongoq.protocol.state.context import QueueContext

__all__ = ["ClaimOfMany", "read_candidates", "read_fresh_candidates", "select_ordinary"]

_id, _when = itemgetter("_id"), itemgetter("when")


def read_candidates(
    context: QueueContext[Any], n: int, *, remembered: bool = False, due: datetime | None = None
) -> Flow[list[Document] | None]:
    """Read what may be claimed together of ``n`` (``find``), the first ones unless others take them as well.

    ``None`` when nothing is eligible, or nothing was at a time ``due``.
    """
    hints, contention, fields = context.state.claim_hints, context.state.contention, _fields(remembered=remembered)
    yield from refresh_hints(context)
    while True:
        now = context.broker.clock.now()
        start, skip = hints.start(context.name, now if due is None else min(due, now)), contention.skip(n)
        read = yield from find_few(context.broker, start.filter, ORDER, n, projection=fields, skip=skip)
        if not skip:
            hints.found(start, read[0] if read else None)
        if read:
            return select_ordinary(read)
        if skip:
            contention.beyond()
        elif not (yield from has_items_before_bound(context)):
            return None


def read_fresh_candidates(context: QueueContext[Any], n: int, *, remembered: bool) -> Flow[list[Document] | None]:
    """Read only unreserved, ordinary candidates: items with expired leases may fill the head."""
    filter = {**eligible(context.name, context.broker.clock.now()), "reserved": {"$ne": True}}
    read = yield from find_few(context.broker, filter, ORDER, n, projection=_fields(remembered=remembered))
    return select_ordinary(read) or None


def _fields(*, remembered: bool) -> dict[str, int]:
    return {"priority": 1, "when": 1, **({"once": 1} if remembered else {})}  # without, the index is all it takes


def select_ordinary(read: list[Document]) -> list[Document]:
    """Return the documents that can join a batch; another program's odd types are claimed one by one."""
    if {datetime}.issuperset(map(type, map(_when, read))) and {ObjectId}.issuperset(map(type, map(_id, read))):
        return read
    return [
        document
        for document in read
        if isinstance(document["when"], datetime) and not isinstance(document["_id"], dict)
    ]


UNTOUCHED_FILTER: Mapping[str, Any] = {"by": None, "key": None, "once": None}
"""Items that were never claimed and cannot be replaced have none of these (``mongoq.protocol.claim.read_ahead``)."""
MAX_ATTEMPTS = 2**31
"""Attempts from this on cannot be counted in an int32; other programs may have written any value."""


@dataclass(frozen=True, slots=True)
class ClaimOfMany:
    """One claim of many items: its candidates, and the fields that it sets on them.

    Attributes:
        context: the queue.
        dues: when each item became eligible, by ``id_key``, in the order of claims. An item claimed and released
            by another process between the read and the update keeps the earlier date, and is released to that place.
        ids: the ids, by ``id_key``; other programs may have used any value as an id.
        now: the server's time of the claim.
        mine: the fields that the claim sets.
        sparing: the claim leaves items with an expired lease where they are.
        beside: other items were claimed under the same token before.
        noting: the claim writes when each item came to its queue, into ``pushed`` (``entry_time``).
        where: a further condition on the items; items that do not match were settled before.
        remembered: until when each id is remembered, by ``id_key``, in a claim of items to be settled at once.
        priorities: the priorities of the items.
        untouched: the raw envelopes, when all items were read whole and were never claimed: they are not read again.
        opened: the decoded envelopes of ``untouched``; set when they are needed.
        lapsed: items with an expired lease that the claim has left.
    """

    context: QueueContext[Any]
    dues: Mapping[Any, datetime]
    ids: Mapping[Any, Any]
    now: datetime
    mine: Mapping[str, Any]
    sparing: bool = False
    beside: bool = False
    noting: bool = False
    where: Mapping[str, Any] = field(default_factory=dict)
    remembered: Mapping[Any, Any] = field(default_factory=dict)
    priorities: frozenset[int] = frozenset()
    untouched: Sequence[RawEnvelope] = ()
    opened: list[dict[str, Any]] = field(default_factory=list)
    lapsed: list[Any] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        context: QueueContext[Any],
        first: Sequence[Document],
        lease: timedelta,
        *,
        sparing: bool = False,
        where: Mapping[str, Any] | None = None,
    ) -> ClaimOfMany:
        now = context.broker.clock.now()
        mine = _make_marks(context, now, lease)
        found = _by_key(first)
        ids, dues = _ids_and_dues(found)
        if not where:
            return cls(context, dues, ids, now, mine, sparing)
        # other programs may have written anything there
        remembered = {key: once for key, each in found.items() if isinstance(once := each.get("once"), datetime)}
        priorities = frozenset(one for document in first if isinstance(one := document.get("priority"), int))
        return cls(context, dues, ids, now, mine, sparing, where=where, remembered=remembered, priorities=priorities)

    @classmethod
    def of_untouched(cls, context: QueueContext[Any], first: Sequence[RawEnvelope], lease: timedelta) -> ClaimOfMany:
        """Return a claim of untouched items."""
        now = context.broker.clock.now()
        time = cache(time_of)  # most are due at a few different times
        found = {one.id: one for one in first}
        dues = {key: time(one.at) for key, one in found.items()}
        ids = dict(zip(found, map(ObjectId, found), strict=True))
        return cls(context, dues, ids, now, _make_marks(context, now, lease), untouched=[*found.values()])

    @classmethod
    def under(
        cls,
        context: QueueContext[Any],
        first: Sequence[Document],
        mine: Mapping[str, Any],
        *,
        now: datetime,
        beside: bool,
    ) -> ClaimOfMany:
        """Return a stream's claim with the marks of others before it, of what was eligible at a time."""
        ids, dues = _ids_and_dues(_by_key(first))
        return cls(context, dues, ids, now, mine, beside=beside, noting=True)

    @property
    def token(self) -> ObjectId:
        return self.mine["token"]  # type: ignore[no-any-return]

    @property
    def is_beside(self) -> bool:
        """True when its items run beside other items, even a single one."""
        return self.sparing or self.beside

    def filter(self, ids: Sequence[Any]) -> dict[str, Any]:
        """Return the filter of items that are still eligible, and are to be claimed."""
        return {**self.eligible_filter(ids), **self.where}

    def eligible_filter(self, ids: Sequence[Any]) -> dict[str, Any]:
        """Return the filter of items that are still eligible."""
        return {"_id": {"$in": ids}, **eligible(self.context.name, self.now)}

    def command(self) -> Command[Any]:
        """Return the claim of all that have runs left; alone, an item is not one of a batch."""
        most = self.context.settings.most_attempts
        kept = {"reserved": {"$ne": True}} if self.sparing else {}
        return Command(
            "update_many",
            {
                "filter": {
                    **self.filter(list(self.ids.values())),
                    "attempts": {"$lt": MAX_ATTEMPTS if most is None else most},
                    **kept,
                    **(UNTOUCHED_FILTER if self.untouched else {}),
                },
                "update": self._update,
            },
            number_matched,
            undo=lambda _: self.give_back(self.ids),
            resolved=True,
        )

    @property
    def _update(self) -> Any:
        if not self.noting:
            return {"$set": self._marks, "$inc": {"attempts": 1}}
        marks = {name: {"$literal": value} for name, value in self._marks.items()}
        return [{"$set": {**marks, "attempts": {"$add": ["$attempts", 1]}, "pushed": ENTRY}}]

    @property
    def _marks(self) -> dict[str, Any]:
        return {**self.mine, "batch": self.token} if len(self.ids) > 1 or self.is_beside else {**self.mine}

    def decode_untouched(self) -> None:
        """Decode untouched items, if nothing keeps anybody from it."""
        with suppress(Exception):  # it is told when they are read again
            ids, encoding = list(self.ids.values()), self.context.broker.encoding
            self.opened.extend(opened(self.untouched, self.context.name, ids, encoding))

    def make_untouched_items(self) -> list[Item[Any]]:
        """Return untouched items as they are once it has taken all of them; none where they cannot be decoded."""
        if not self.opened:
            self.decode_untouched()
        marks = {**self._marks, "attempts": 1}
        for document in self.opened:
            document.update(marks)
        return self.context.raw_items(self.opened, self.now, list(self.dues.values())) if self.opened else []

    def give_back(self, keys: Iterable[Any]) -> Command[Any]:
        """Return the command that hands back what this claim holds of these, unused."""
        if self.context.broker.serverless:
            ids = [self.ids[key] for key in keys]
            filter = {"_id": {"$in": ids}, "token": self.token}
            return Command("update_many", {"filter": filter, "update": release_update(self.now)})
        places: dict[datetime, list[Any]] = {}
        for key in keys:
            places.setdefault(self.dues[key], []).append(self.ids[key])
        requests: list[Statement] = [
            make_statement(self.token, ids, release_update(when)) for when, ids in places.items()
        ]
        return Command("bulk_write", {"requests": requests, "ordered": False})

    def items(self, documents: Sequence[Document], size: int = 0) -> dict[Any, Item[Any]]:
        """Return the items in envelopes that it has taken, each of so many bytes, by the keys of their ids."""
        keys = id_keys([document["_id"] for document in documents])
        items = self.context.raw_items(documents, self.now, [self.dues[key] for key in keys])
        if size:
            for item in items:
                item._size = size  # noqa: SLF001
        return dict(zip(keys, items, strict=True))


def _make_marks(context: QueueContext[Any], now: datetime, lease: timedelta) -> dict[str, Any]:
    return {"when": now + lease, "reserved": True, "token": new_id(), "by": str(context.broker.identity)}


def _by_key(first: Sequence[Document]) -> dict[Any, Document]:
    """Return what was read by the keys of the ids; an item that was moved meanwhile was read twice, and comes once."""
    keys = id_keys([document["_id"] for document in first])
    found = dict(zip(keys, first, strict=True))
    if len(found) < len(first):
        found = dict(zip(reversed(keys), reversed(first), strict=True))
        return {key: found[key] for key in dict.fromkeys(keys)}
    return found


def _ids_and_dues(found: Mapping[Any, Document]) -> tuple[dict[Any, Any], dict[Any, datetime]]:
    return (
        {key: document["_id"] for key, document in found.items()},
        {key: document["when"] for key, document in found.items()},
    )
