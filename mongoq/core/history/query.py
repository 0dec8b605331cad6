"""Queries: items of a queue in one state, filtered and in order; read, counted and deleted slice by slice.

Processed items come oldest first, live items in the order of claims, and blocked ones sequence by sequence. Pages go by
key, so no cursor stays open between them. A filter that no index answers would keep one command busy with the whole
queue or history: a search therefore reads slices. A slice is the next documents of an index, and only these are
compared with the filter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import NoneType
from typing import Any
from uuid import UUID

from bson import DatetimeMS, Decimal128, ObjectId, Regex, Timestamp
from bson.errors import InvalidBSON

from mongoq.core.base.bootstrap import ensure_broker_ready
from mongoq.core.base.find import close_cursor, find_command, find_few, find_undecoded, read_stored_batch
from mongoq.core.base.retry import retry_once
from mongoq.core.command import Command, Unreadable, own_error
from mongoq.core.history.read import NOT_RESERVED, Selection, in_state
from mongoq.core.perform import perform
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.arguments import count, moment, object_id, read_list
from mongoq.data.clock import Clock, roughly_now
from mongoq.data.encoding.codec import Encoding, UnreadableDocument
from mongoq.data.indexes import BEGINNING, CLAIM, HISTORY, SEQUENCE, SEQUENCE_ORDER, Index
from mongoq.data.item import Document
from mongoq.data.operators import where_filter
from mongoq.errors import ArgumentInvalid, CollectionUnsuitable, FilterInvalid

SLICE = 20_000
"""Documents that one command of a search examines, at most."""
PAGE = 500
"""Documents in one reply of a search, at most."""
BY_ID = {"_id": 1}
"""Index of ids: with other fields in the filter, the server might read the whole queue."""
MAX_ID_SECONDS = 2**32 - 1
"""Seconds since 1970 that an ObjectId can have, at most."""
REFUSED_FILTER_CODES = (2, 9, 51091)
"""Codes of the server's errors for a filter that it cannot read: bad values, a pattern that does not compile."""

Progress = Callable[[int], object]
"""Function of the caller that receives the number of items examined so far."""


@dataclass(frozen=True, slots=True)
class Query:
    """Items of a queue, and the document after which the next page begins.

    Attributes:
        state: one state, or ``None`` for all live items that are not blocked.
        since: first time in the range: ``processed``, or ``when`` of live items.
        until: end of the range, not part of it; ``None`` for no end.
        where: filter on payloads and envelopes, translated for the server; empty for all items.
        page: documents in one page, at most.
        ids: only the items with these ids; ``None`` for all.
        started: time that counts as "now" for all pages; set by the first page.
        after: document that was read last; ``None`` before the first page.
        last: document that ends the slice which is being read; ``None`` for no such end.
    """

    state: Selection
    since: datetime
    until: datetime | None
    where: Mapping[str, Any]
    page: int
    ids: tuple[ObjectId, ...] | None = None
    started: datetime | None = None
    after: Document | None = None
    last: Document | None = None

    @property
    def order(self) -> list[tuple[str, int]]:
        """Sort order: processed items oldest first, blocked ones by sequence, others as they would be claimed."""
        return SEQUENCE_ORDER if self.state == "blocked" else self.index.order

    @property
    def index(self) -> Index:
        """Index that has the items in their order."""
        return {"processed": HISTORY, "blocked": SEQUENCE}.get(str(self.state), CLAIM)

    @property
    def key_fields(self) -> dict[str, int]:
        """Projection of an item's place in the order, which the server answers from the index alone."""
        fields = {name: 1 for name, _ in self.order}
        return fields if "_id" in fields else {**fields, "_id": 0}

    @property
    def hint(self) -> Mapping[str, int] | None:
        """Index that the server must use; without it, it may scan all later ids if few items match (seen on 6.0)."""
        return self.index.pattern if (self.after, self.last) != (None, None) else None

    def behind(self, position: Any, encoding: Encoding) -> Query:
        """Return the query of the items after a position, as ``Replayed.position`` gives it."""
        if not isinstance(position, tuple | list) or len(position) != 2:
            raise ArgumentInvalid("after", f"a time and an id, as Replayed.position tells them, not {position!r:.100}")
        last = {"processed": moment(position[0], "after[0]"), "_id": position[1]}
        try:
            if isinstance(position[1], list | tuple | re.Pattern | Regex):
                raise TypeError("no document has such an id")
            encoding.size(last)
        except Exception as error:
            # Other programs may have used any id, so an error of any kind is possible here.
            raise ArgumentInvalid("after[1]", f"the id of an item, not {position[1]!r:.100}: {error}") from error
        return replace(self, after=last)

    def behind_slice(self) -> Query | None:
        """Return the query of what is behind the slice that is being read; ``None`` if there is nothing."""
        return None if self.last is None else replace(self, after=self.last, last=None)

    def narrow(self, filter: Mapping[str, Any]) -> Query:
        """Return the query of the items that match another filter as well."""
        return replace(self, where={"$and": [self.where, filter]} if self.where else filter)

    def free(self, now: datetime) -> Query:
        """Return the query of the live items that no caller holds."""
        return self.narrow({"$or": [{"reserved": NOT_RESERVED}, {"when": {"$lte": now}}]})

    def without_later(self, time: datetime | None, clock: Clock) -> Query:
        """Return the query without items that came after a time, and until now.

        An item that became due or died since then is left out by its date. One that is due at another time has only its
        id, which says the second of its push; an id that a caller has drawn by chance lies in no such window. Without a
        time, nothing is left out.
        """
        if time is None:
            return self
        time, now = moment(time, "as_of"), roughly_now(clock)
        # The clocks of pushers may be ahead by an hour.
        ids = {"$gte": _first_id(time.timestamp() + 1), "$lte": _first_id(now.timestamp() + 3600)}
        # An item with a place in a sequence may be due since a moment ago because the one before it was deleted.
        due = {"when": {"$gt": time, "$lte": now}, "place": {"$exists": False}}
        return self.narrow({"$nor": [due, {"processed": {"$gt": time}}, {"_id": ids}]})

    def split(self, number: int) -> Iterator[Query]:
        """Split a query by ids into queries of so many ids; any other one stays whole."""
        ids = self.ids
        if ids is None:
            yield self
        else:
            yield from (replace(self, ids=ids[start : start + number]) for start in range(0, len(ids), number))

    def filter(self, queue: str) -> dict[str, Any]:
        """Return the filter of the remaining items, without stubs, which have no payload."""
        filter, conditions = self.key_filter(queue), self.conditions(queue)
        return {**filter, "$and": [*filter.get("$and", ()), *conditions]} if conditions else filter

    def key_filter(self, queue: str) -> dict[str, Any]:
        """Return the part of ``filter`` that the keys of one index answer."""
        filter, _ = self._divide(queue)
        if self.after is None and self.last is None:
            return filter
        # One scan of the index for each part.
        places = _places_between([name for name, _ in self.order], self.after, self.last)
        return {"$or": [{"$and": [filter, *place]} for place in places]}

    def conditions(self, queue: str) -> list[Mapping[str, Any]]:
        """Return the other part of ``filter``, which only the documents can answer; empty if there is none."""
        _, conditions = self._divide(queue)
        named = {} if self.ids is None else {"_id": {"$in": list(self.ids)}}
        return [part for part in (named, conditions, self.where) if part]

    def _divide(self, queue: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the filter of the keys, and that of the fields of the envelope which are in no index."""
        bounds: dict[str, Any] = {"$gte": self.since}
        if self.until is not None:
            bounds["$lt"] = self.until
        filter = in_state(queue, self.state, self.started or BEGINNING)
        conditions: dict[str, Any] = {name: filter.pop(name) for name in ("reserved", "payload") if name in filter}
        if self.state == "processed":
            filter["processed"] = bounds
        elif bounds != {"$gte": BEGINNING}:
            filter["$and"] = [{"when": bounds}]
        return filter, conditions


def _first_id(seconds: float) -> ObjectId:
    """Return the first id of a second; an id has room for those of 1970 to 2106."""
    return ObjectId(min(max(int(seconds), 0), MAX_ID_SECONDS).to_bytes(4, "big") + bytes(8))


Parts = list[dict[str, Any]]
"""Filters that must all match."""


def _places_between(fields: Sequence[str], after: Document | None, last: Document | None) -> list[Parts]:
    """Return filters of the places after one document, up to another one, each of them one part of the index.

    ``fields`` are the fields of the order. Without ``after`` the places begin with the first one, and without ``last``
    they end with the last one. A comparison on the server finds values of one type only; items of other programs may
    have any id, and no number as their priority.
    """
    name, *others = fields
    first, final = (None if end is None else {name: end.get(name)} for end in (after, last))
    if not others:
        lowers: list[Any] = [{}] if first is None else [{name: values} for values in _later_values(name, first[name])]
        uppers = [] if final is None else [{name: {"$not": values}} for values in _later_values(name, final[name])]
        return [[lower, *uppers] for lower in lowers]
    # ``repr``, because NaN is not equal to itself.
    if first is not None and final is not None and (first == final or repr(first) == repr(final)):
        return [[first, *place] for place in _places_between(others, after, last)]
    begin = [] if first is None else [[first, *place] for place in _places_between(others, after, None)]
    end = [] if final is None else [[final, *place] for place in _places_between(others, None, last)]
    return [*begin, *([{name: values}] for values in _values_between(name, first, final)), *end]


PRIORITY_KINDS: tuple[Any, ...] = (None, math.nan, {"$gte": -math.inf}, {"$gte": ""})
"""Conditions of the kinds of priorities, as they sort: missing, not a number, numbers, texts."""
NUMBER = 2
"""Place of numbers among the kinds of priorities."""


def _values_between(name: str, first: Document | None, final: Document | None) -> list[Any]:
    """Return conditions of the values between those of two documents."""
    lower = {} if first is None else {"$gt": first[name]}
    upper = {} if final is None else {"$lt": final[name]}
    if name != "priority":
        return [{**lower, **upper}]
    # Another program may have left the priority out, or stored anything; a comparison finds values of one type only.
    low = -1 if first is None else _rank(first[name])
    high = len(PRIORITY_KINDS) if final is None else _rank(final[name])
    if low == high:
        return [{**lower, **upper}]
    between: list[Any] = [kind for rank, kind in enumerate(PRIORITY_KINDS) if low < rank < high]
    ends = [end for end, rank in ((lower, low), (upper, high)) if NUMBER <= rank < len(PRIORITY_KINDS)]
    return [*between, *ends]


def _rank(priority: Any) -> int:
    """Return the place of a priority among the kinds."""
    if priority is None:
        return 0
    if not isinstance(priority, int | float | Decimal128):
        return NUMBER + 1
    return NUMBER if priority == priority else 1  # noqa: PLR0124  # only NaN is not equal to itself


ID_TYPES: tuple[tuple[str, Any], ...] = (
    ("null", NoneType),
    ("number", (int, float, Decimal128)),
    ("string", str),
    ("object", Mapping),
    ("binData", (bytes, UUID)),
    ("objectId", ObjectId),
    ("bool", bool),
    ("date", (datetime, DatetimeMS)),
    ("timestamp", Timestamp),
)
"""Types of ids in the server's sort order; a comparison on the server finds only values of the same type."""


def _later_values(name: str, value: Any) -> list[dict[str, Any]]:
    """Return conditions of the ids after this one, or places; other programs may have used any type for their ids."""
    if name == "place" or isinstance(value, ObjectId):
        # Ids of types that sort after all ObjectIds are too rare to ask for them every time.
        return [{"$gt": value}]
    # The last match, because a bool is an int as well.
    own = max((place for place, (_, kinds) in enumerate(ID_TYPES) if isinstance(value, kinds)), default=len(ID_TYPES))
    types = [name for name, _ in ID_TYPES[own + 1 :]]
    later = {"$gte": -math.inf} if value != value else {"$gt": value}  # noqa: PLR0124  # NaN is the least number
    return [later, *([{"$type": types}] if types else [])]


def make_query(
    context: QueueContext[Any],
    *,
    state: Selection,
    since: datetime | None = None,
    until: datetime | None = None,
    where: Any = None,
    page: int = PAGE,
) -> Query:
    """Check the arguments of a read, and return its query."""
    first = BEGINNING if since is None else moment(since, "since")
    last = None if until is None else moment(until, "until")
    if last is not None and last < first:
        raise ArgumentInvalid("until", f"{until} lies before since, {since}")
    if state == "blocked" and (since is not None or until is not None):
        name = "until" if since is None else "since"
        raise ArgumentInvalid(name, "cannot be given with state='blocked': blocked items have no date yet")
    in_state(context.name, state, BEGINNING)
    filter = {} if where is None else where_filter(where, context.broker.encoding)
    return Query(state, first, last, filter, count(page, "page"))


def read_ids(ids: Any) -> tuple[ObjectId, ...]:
    """Check the ids of a read, and return each once."""
    return tuple(dict.fromkeys(object_id(id, f"ids[{place}]") for place, id in enumerate(read_list(ids, "ids"))))


@dataclass(frozen=True, slots=True)
class BoundedCount:
    """A number of items that was counted up to a limit.

    Attributes:
        number: items that were counted.
        exact: False if the count ended at its limit: then there are at least that many.
    """

    number: int = 0
    exact: bool = True

    def __str__(self) -> str:
        """Return the number, ``> N`` for more than N, or ``?`` where the limit left nothing to count."""
        if self.exact:
            return f"{self.number:,}"
        return f"> {self.number - 1:,}" if self.number else "?"

    def __add__(self, other: BoundedCount) -> BoundedCount:
        """Return the sum, which is exact if both numbers are."""
        return BoundedCount(self.number + other.number, self.exact and other.exact)


async def documents_page(
    context: QueueContext[Any], query: Query, *, fields: Mapping[str, int] | None = None
) -> tuple[list[Any], Query | None]:
    """Read the documents of one page, at most one reply of the server, and return the query of the rest.

    With ``fields`` only these are read, and with a server documents stay undecoded bytes. A page of a query by ids are
    the documents of the next ids, decoded.
    """
    broker = context.broker
    await ensure_broker_ready(broker, write=False)
    query = replace(query, started=query.started or broker.clock.now())
    if query.ids is not None:
        ids, behind = query.ids[: query.page], query.ids[query.page :]
        named = replace(query, ids=ids).filter(context.name)
        documents = await find_few(broker, named, query.order, len(ids), hint=BY_ID, target="history", lenient=True)
        return documents, replace(query, ids=behind) if behind else None
    filter, fields_alone = query.filter(context.name), {} if fields is None else {"projection": fields}
    if broker.serverless:
        arguments = {"filter": filter, "sort": query.order, "limit": query.page, **fields_alone}
        documents, cursor_id = await perform(Command("find", arguments, target="history")), 0
    else:
        find = {"filter": filter, "sort": dict(query.order), "limit": query.page, "batchSize": query.page}
        find |= {**fields_alone, "readConcern": {"level": "majority"}}
        try:
            hint = {} if query.hint is None else {"hint": query.hint}
            documents, cursor_id = await _read_reply(broker, {**find, **hint}, as_stored=fields is not None)
        except Exception as error:
            if query.hint is None or not lacks_index(error):
                refuse_filter(query.where, error)
                raise
            # A collection without the index holds few items.
            documents, cursor_id = await _read_reply(broker, find, as_stored=fields is not None)
        if cursor_id:
            # A page of large items takes no more memory than one reply (16 MB).
            await close_cursor(broker, cursor_id)
    if not cursor_id and len(documents) < query.page:
        return documents, None
    return documents, replace(query, after=open_document(broker, documents[-1]))


async def _read_reply(broker: BrokerContext, find: dict[str, Any], *, as_stored: bool) -> tuple[list[Any], int]:
    """Return the documents of the server's first reply, and the id of the cursor for the others, 0 for none."""
    command = find_command(broker, find, as_stored=as_stored)
    try:
        cursor = await retry_once(command)
        return read_stored_batch(cursor) if as_stored else (cursor["firstBatch"], cursor["id"])
    except Unreadable:
        cursor = await find_undecoded(broker, command)
        return cursor["firstBatch"], cursor["id"]


def open_document(broker: BrokerContext, document: Document | bytes) -> Document:
    """Decode a document that may still be bytes; return an ``UnreadableDocument`` if that fails."""
    if not isinstance(document, bytes):
        return document
    try:
        return dict(broker.encoding.of_bytes(document))
    except InvalidBSON:
        return broker.encoding.read(document)


def refuse_filter(where: Any, error: Exception) -> None:
    """Raise ``FilterInvalid`` if the server cannot read the user's filter; other errors are left to the caller."""
    if where and is_refused_filter(error):
        raise FilterInvalid("where", f"the server refuses it: {refusal(error)}") from error


def lacks_index(error: Exception) -> bool:
    """Return whether an error is the server's answer to a hint at an index that does not exist."""
    return is_refused_filter(error) and "hint provided" in refusal(error)


def is_refused_filter(error: Exception) -> bool:
    """Return whether an error is the server's answer to a filter that it cannot read."""
    return getattr(own_error(error), "code", None) in REFUSED_FILTER_CODES


def refusal(error: Exception) -> str:
    """Return the server's message without the rest of its reply."""
    details = getattr(own_error(error), "details", None)
    return str(details["errmsg"] if isinstance(details, Mapping) and "errmsg" in details else error)


async def read_slice(context: QueueContext[Any], query: Query) -> tuple[list[Document], Query | None, int]:
    """Read the next matching documents of a query, a page of them at most, within one slice (two ``find``).

    Returns the documents, the query of the rest, ``None`` at the end, and how many documents it has passed, at most.
    There may be no documents although there is a rest. Without a filter, or by ids, there are no slices (one ``find``).
    """
    if query.ids is None and query.last is None and query.conditions(context.name):
        query = await _cut_slice(context, query, SLICE)
    documents, rest = await documents_page(context, query)
    if rest is None:
        return documents, query.behind_slice(), SLICE
    return documents, rest, len(documents)


async def _cut_slice(context: QueueContext[Any], query: Query, examine: int) -> Query:
    """Return the query of the next slice, which has no ``last`` at the end.

    The end of the slice is read from the keys of the index alone (``find``). The slice is what lies before it, whatever
    comes or goes meanwhile: no item is met twice, and none that stays is passed over.
    """
    broker = context.broker
    await ensure_broker_ready(broker, write=False)
    query = replace(query, started=query.started or broker.clock.now())
    options: dict[str, Any] = {"projection": query.key_fields, "hint": query.index.pattern, "target": "history"}
    keys = query.key_filter(context.name)
    try:
        ends = await find_few(broker, keys, query.order, 2, skip=examine - 1, **options)
    except Exception as error:
        if lacks_index(error):
            problem = f"lacks the index {query.index.name}; run broker.ensure_indexes(), see 'mongoq doctor'"
            raise CollectionUnsuitable(broker.namespace, problem) from error
        raise
    return query if len(ends) < 2 else replace(query, last=ends[0])


async def search(
    context: QueueContext[Any], query: Query, *, limit: int, progress: Progress | None = None
) -> list[Document]:
    """Read the first ``limit`` matching documents of a query, slice by slice; undecodable ones come in addition.

    It reads to the end if there are fewer. ``progress`` is called after each page.
    """
    found, missing, examined = list[Document](), limit, 0
    rest: Query | None = query
    while missing > 0 and rest is not None:
        # Ids may be given in any order: the first one may be the last to come.
        page = PAGE if query.ids is not None else min(PAGE, missing)
        documents, rest, more = await read_slice(context, replace(rest, page=page))
        found += documents
        missing -= sum(not isinstance(document, UnreadableDocument) for document in documents)
        examined += more
        if progress is not None:
            progress(examined)
    return found


async def count_range(
    context: QueueContext[Any], query: Query, *, limit: int, progress: Progress | None = None
) -> BoundedCount:
    """Count the items of a query among the first ``limit`` items, slice by slice (``find`` and ``aggregate`` each).

    Without a filter, the server counts keys of the index (``aggregate``). ``progress`` is called after each slice.
    """
    await ensure_broker_ready(context.broker, write=False)
    if not query.conditions(context.name):
        whole = replace(query, started=context.broker.clock.now()).filter(context.name)
        number: int = await perform(Command("count_documents", {"filter": whole, "limit": limit + 1}))
        return BoundedCount(number, exact=number <= limit)
    number, examined, rest = 0, 0, query
    while examined < limit:
        size = min(SLICE, limit - examined)
        part = await _cut_slice(context, rest, size)
        hint = {} if context.broker.serverless else {"hint": part.index.pattern}
        try:
            number += await perform(Command("count_documents", {"filter": part.filter(context.name), **hint}))
        except Exception as error:
            refuse_filter(part.where, error)
            raise
        examined += size
        if progress is not None:
            progress(examined)
        behind = part.behind_slice()
        if behind is None:
            return BoundedCount(number)
        rest = behind
    return BoundedCount(number, exact=False)


async def count_free(
    context: QueueContext[Any], query: Query, *, limit: int, progress: Progress | None = None
) -> BoundedCount:
    """Count the live items of a query that no caller holds, as ``count_range`` does.

    These are all due items and all blocked ones, which need no look at the documents, and the later ones that are not
    reserved. Items that are named by ids are counted by these.
    """
    await ensure_broker_ready(context.broker, write=False)
    now, free = context.broker.clock.now(), BoundedCount()
    if query.ids is not None:
        for part in query.free(now).split(PAGE):
            number: int = await perform(Command("count_documents", {"filter": part.filter(context.name)}))
            free += BoundedCount(number)
        return free
    later = replace(query, since=now).narrow({"reserved": NOT_RESERVED})
    for part in (replace(query, until=now), later, replace(query, state="blocked")):
        left = max(1, limit - free.number)
        free += await count_range(context, part, limit=left, progress=progress)
        if not free.exact:
            break
    return free
