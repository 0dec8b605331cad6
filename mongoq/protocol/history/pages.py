"""History: processed items, oldest first, and live items in the order of claims, in pages by key.

Blocked items come sequence by sequence, in the order of their places.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import NoneType
from typing import Any, Generic, TypeVar
from uuid import UUID

from bson import DatetimeMS, Decimal128, ObjectId, Regex, Timestamp
from bson.errors import InvalidBSON

from mongoq.errors import ArgumentInvalid, FilterInvalid
from mongoq.model.arguments import count, moment
from mongoq.model.clock import Clock
from mongoq.model.encoding.codec import Encoding
from mongoq.model.indexes import BEGINNING, CLAIM, HISTORY, SEQUENCE, SEQUENCE_ORDER, Index
from mongoq.model.item import Document, Item
from mongoq.model.operators import where_filter
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import close_cursor, find_command, find_undecoded, read_stored_batch
from mongoq.protocol.base.retry import retry_once
from mongoq.protocol.flow import Begin, Begun, Command, Flow, Unreadable, own_error
from mongoq.protocol.history.read import Selection, in_state
from mongoq.protocol.state.context import BrokerContext, QueueContext

M = TypeVar("M")
MAX_ID_SECONDS = 2**32 - 1
"""Seconds since 1970 that an ObjectId can have, at most."""
REFUSED_FILTER_CODES = (2, 9, 51091)
"""Codes of the server's errors for a filter that it cannot read: bad values, a pattern that does not compile."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range of items to read, and the document after which the next page begins.

    Attributes:
        state: one state, or ``None`` for all live items.
        since: first time in the range: ``processed``, or ``when`` of live items.
        until: end of the range, not part of it; ``None`` for no end.
        where: filter on payloads, translated for the server; empty for all items.
        page: documents in one page, at most.
        started: time that counts as "now" for all pages; set by the first page.
        after: document that was read last; ``None`` before the first page.
        last: document that ends the range; ``None`` for no such end.
        has_hint: True if the server must read the range by its index, one scan for each part. Otherwise it chooses, and
            it may scan a priority from the beginning if few items match, or all later ids (seen on 6.0).
    """

    state: Selection
    since: datetime
    until: datetime | None
    where: Mapping[str, Any]
    page: int
    started: datetime | None = None
    after: Document | None = None
    last: Document | None = None
    has_hint: bool = False

    @property
    def order(self) -> list[tuple[str, int]]:
        """Sort order: processed items oldest first, blocked ones by sequence, others as they would be claimed."""
        return SEQUENCE_ORDER if self.state == "blocked" else self.index.order

    def behind(self, position: Any, encoding: Encoding) -> Range:
        """Return the range after a position, as ``Replayed.position`` gives it."""
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

    def narrow(self, filter: Mapping[str, Any]) -> Range:
        """Return the range of the items that match a filter of envelopes as well."""
        return replace(self, where={"$and": [self.where, filter]} if self.where else filter)

    def without_later(self, time: datetime | None, clock: Clock) -> Range:
        """Return the range without items that came after a time, and until now.

        An item that became due or died since then is left out by its date. One that is due at another time has only its
        id, which says the second of its push; an id that a caller has drawn by chance lies in no such window. Without a
        time, nothing is left out.
        """
        if time is None:
            return self
        now = clock.now()
        # The clocks of pushers may be ahead by an hour.
        ids = {"$gte": _first_id(time.timestamp() + 1), "$lte": _first_id(now.timestamp() + 3600)}
        # An item with a place in a sequence may be due since a moment ago because the one before it was deleted.
        due = {"when": {"$gt": time, "$lte": now}, "place": {"$exists": False}}
        later = [due, {"processed": {"$gt": time}}, {"_id": ids}]
        return self.narrow({"$nor": later})

    def filter(self, queue: str) -> dict[str, Any]:
        """Return the filter of the remaining items, without stubs, which have no payload."""
        filter, conditions = self.key_filter(queue), self.conditions(queue)
        return {**filter, "$and": [*filter.get("$and", ()), *conditions]} if conditions else filter

    @property
    def index(self) -> Index:
        """Index that has the items of the range in its order."""
        return {"processed": HISTORY, "blocked": SEQUENCE}.get(str(self.state), CLAIM)

    def key_filter(self, queue: str) -> dict[str, Any]:
        """Return the part of ``filter`` that the keys of one index answer."""
        filter, _ = self._divide(queue)
        if self.state == "blocked":
            return {**filter, "$and": _places_in_sequences(self.after, self.last)}
        if self.has_hint and (self.after is not None or self.last is not None):
            places = _places_between([name for name, _ in self.order], self.after, self.last)
            return {"$or": [{"$and": [filter, *place]} for place in places]}
        rest = self._rest()
        if "processed" in rest:
            rest["processed"] = filter["processed"] | rest["processed"]
        return filter | rest

    def conditions(self, queue: str) -> list[Mapping[str, Any]]:
        """Return the other part of ``filter``, which only the documents can answer; empty if there is none."""
        _, conditions = self._divide(queue)
        return [part for part in (conditions, self.where) if part]

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

    def _rest(self) -> dict[str, Any]:
        """Return a filter of the documents after the last one, in a form that one scan of the index answers."""
        last = self.after
        if last is None:
            return {}
        if self.state == "processed":
            behind = [{"processed": {"$gt": last["processed"]}}, *_later_ids(last["_id"])]
            return {"processed": {"$gte": last["processed"]}, "$or": behind}
        # Another program may have left the priority out; a missing one sorts first, and NaN next.
        priority = last.get("priority")
        if priority != priority:  # noqa: PLR0124  # NaN, which comes next
            priority = None
        behind = [
            {"priority": {"$gt": -math.inf if priority is None else priority}},
            {"when": {"$gt": last["when"]}},
            *({"when": last["when"], **later} for later in _later_ids(last["_id"])),
        ]
        return {"$or": behind} | ({} if priority is None else {"priority": {"$gte": priority}})


def _first_id(seconds: float) -> ObjectId:
    """Return the first id of a second; an id has room for those of 1970 to 2106."""
    return ObjectId(min(max(int(seconds), 0), MAX_ID_SECONDS).to_bytes(4, "big") + bytes(8))


def _places_in_sequences(after: Document | None, last: Document | None) -> list[Mapping[str, Any]]:
    """Return conditions of the blocked items after one document, up to another one; ``place`` is unique in a sequence.

    The first condition matches every blocked item, since ``$and`` cannot be empty.
    """
    parts: list[Mapping[str, Any]] = [{"sequence": {"$gte": ""}}]
    for document, beyond, within in ((after, "$gt", "$gt"), (last, "$lt", "$lte")):
        if document is not None:
            sequence, place = document["sequence"], document["place"]
            parts += [{"sequence": {f"{beyond}e": sequence}}]
            parts += [{"$or": [{"sequence": {beyond: sequence}}, {"place": {within: place}}]}]
    return parts


Parts = list[dict[str, Any]]
"""Filters that must all match."""


def _places_between(fields: Sequence[str], after: Document | None, last: Document | None) -> list[Parts]:
    """Return filters of the places after one document, up to another one, each of them one part of the index.

    ``fields`` are the fields of the order. Without ``after`` the places begin with the first one, and without ``last``
    they end with the last one.
    """
    name, *others = fields
    if not others:
        return _ids_between(after, last)
    first, final = (None if end is None else {name: end.get(name)} for end in (after, last))
    # ``repr``, because NaN is not equal to itself.
    if first is not None and final is not None and (first == final or repr(first) == repr(final)):
        return [[first, *place] for place in _places_between(others, after, last)]
    begin = [] if first is None else [[first, *place] for place in _places_between(others, after, None)]
    end = [] if final is None else [[final, *place] for place in _places_between(others, None, last)]
    return [*begin, *([{name: values}] for values in _values_between(name, first, final)), *end]


def _values_between(name: str, first: Document | None, final: Document | None) -> list[Any]:
    """Return conditions of the values between those of two documents."""
    lower = {} if first is None else {"$gt": first[name]}
    upper = {} if final is None else {"$lt": final[name]}
    if name != "priority":
        return [{**lower, **upper}]
    # Another program may have left the priority out, or stored anything; a comparison finds values of one type only.
    low = -1 if first is None else _rank(first[name])
    high = len(PRIORITY_KINDS) if final is None else _rank(final[name])
    between: list[Any] = [kind for rank, kind in enumerate(PRIORITY_KINDS) if low < rank < high]
    if low == high:
        return [{**lower, **upper}]
    ends = [end for end, rank in ((lower, low), (upper, high)) if NUMBER <= rank < len(PRIORITY_KINDS)]
    return [*between, *ends]


PRIORITY_KINDS: tuple[Any, ...] = (None, math.nan, {"$gte": -math.inf}, {"$gte": ""})
"""Conditions of the kinds of priorities, as they sort: missing, not a number, numbers, texts."""
NUMBER = 2
"""Place of numbers among the kinds of priorities."""


def _rank(priority: Any) -> int:
    """Return the place of a priority among the kinds."""
    if priority is None:
        return 0
    if not isinstance(priority, int | float | Decimal128):
        return NUMBER + 1
    return NUMBER if priority == priority else 1  # noqa: PLR0124  # only NaN is not equal to itself


def _ids_between(after: Document | None, last: Document | None) -> list[Parts]:
    """Return filters of the ids after that of one document, up to that of another one."""
    lowers = [{}] if after is None else _later_ids(after["_id"])
    if last is None:
        return [[lower] for lower in lowers]
    if not isinstance(last["_id"], ObjectId):
        return [[lower, {"$nor": _later_ids(last["_id"])}] for lower in lowers]
    if after is not None and isinstance(after["_id"], ObjectId):
        return [[{"_id": {"$gt": after["_id"], "$lte": last["_id"]}}]]
    # Ids of other types may come before an ObjectId; unlike ``$nor``, this is a bound of the scan.
    return [[lower, {"_id": {"$not": {"$gt": last["_id"]}}}] for lower in lowers]


COPIED_FIELDS = dict.fromkeys(("q", "processed", "payload", "priority", "headers", "attempts", "key"), 1)
"""Fields that a copy is made from."""
_ID_TYPES: tuple[tuple[str, Any], ...] = (
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


def _later_ids(id: Any) -> list[dict[str, Any]]:
    """Return filters of the ids after this one; other programs may have used any type for their ids."""
    if isinstance(id, ObjectId):
        # Ids of types that sort after all ObjectIds are too rare to ask for them every time.
        return [{"_id": {"$gt": id}}]
    fits = [place for place, (_, kinds) in enumerate(_ID_TYPES) if isinstance(id, kinds)]
    # The last match, because a bool is an int as well.
    own = fits[-1] if fits else len(_ID_TYPES)
    types = [name for name, _ in _ID_TYPES[own + 1 :]]
    later = {"$gte": -math.inf} if id != id else {"$gt": id}  # noqa: PLR0124  # NaN is the least number
    return [{"_id": later}, *([{"_id": {"$type": types}}] if types else [])]


@dataclass(frozen=True, slots=True)
class Page(Generic[M]):
    """Some items, and the range of the next page; ``None`` at the end."""

    items: list[Item[M]]
    rest: Range | None


def history_range(
    context: QueueContext[Any],
    *,
    since: datetime | None,
    until: datetime | None,
    where: Any,
    state: Selection,
    page: int,
) -> Range:
    """Check the arguments of a read, and return its range."""
    first = BEGINNING if since is None else moment(since, "since")
    last = None if until is None else moment(until, "until")
    if last is not None and last < first:
        raise ArgumentInvalid("until", f"{until} lies before since, {since}")
    if state == "blocked" and (since is not None or until is not None):
        name = "until" if since is None else "since"
        raise ArgumentInvalid(name, "cannot be given with state='blocked': blocked items have no date yet")
    in_state(context.name, state, BEGINNING)
    filter = {} if where is None else where_filter(where, context.broker.encoding)
    return Range(state, first, last, filter, count(page, "page"))


def history_page(context: QueueContext[M], wanted: Range) -> Flow[Page[M]]:
    """Read one page (``find`` over the index of history or of claims, majority read concern)."""
    documents, rest = yield from documents_page(context, wanted)
    return Page(context.items(documents, context.broker.clock.now()), rest)


def documents_page(context: QueueContext[Any], wanted: Range) -> Flow[tuple[list[Document], Range | None]]:
    """Read the documents of one page, at most one reply of the server, and return the range of the rest."""
    asked = yield from _make_request(context, wanted, as_stored=False, trails=False)
    return (yield from read_page(context.broker, asked))


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


def aggregate_filtered(pipeline: list[Mapping[str, Any]]) -> Flow[list[Any]]:
    """Run a pipeline that has a filter of the user in it (``aggregate``)."""
    try:
        found: list[Any] = yield from Command("aggregate", {"pipeline": pipeline})
    except Exception as error:
        if is_refused_filter(error):
            raise FilterInvalid("where", f"the server refuses it: {refusal(error)}") from error
        raise
    return found


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The request of one page.

    Attributes:
        wanted: range that begins with this page.
        command: command that reads it.
        as_stored: True when the documents are to stay undecoded bytes.
        pending: the command if it is under way; ``None`` before.
    """

    wanted: Range
    command: Command[Any]
    as_stored: bool = False
    pending: Begun | None = None


def request_page(context: QueueContext[Any], wanted: Range, *, as_stored: bool, trails: bool) -> Flow[PageRequest]:
    """Request a page without waiting for it; without a server the command is not sent yet.

    With ``as_stored`` subdocuments stay undecoded bytes, and fields that no copy needs are left out. Trails are among
    those fields unless ``trails`` asks for them.
    """
    asked = yield from _make_request(context, wanted, as_stored=as_stored, trails=trails)
    # mongomock answers at once: there is nothing to run in parallel.
    if context.broker.serverless:
        return asked
    return replace(asked, pending=(yield from Begin(asked.command)))


def _make_request(context: QueueContext[Any], wanted: Range, *, as_stored: bool, trails: bool) -> Flow[PageRequest]:
    broker = context.broker
    yield from ensure_broker_ready(broker, write=False)
    if wanted.started is None:
        wanted = replace(wanted, started=broker.clock.now())
    find: dict[str, Any] = {"filter": wanted.filter(context.name), "sort": dict(wanted.order), "limit": wanted.page}
    if wanted.has_hint and not broker.serverless:
        find["hint"] = wanted.index.pattern
    if as_stored:
        find["projection"] = {**COPIED_FIELDS, "trail": 1} if trails else COPIED_FIELDS
    if broker.serverless:
        return PageRequest(wanted, Command("find", {**find, "sort": list(find["sort"].items())}, target="history"))
    find |= {"batchSize": wanted.page, "readConcern": {"level": "majority"}}
    return PageRequest(wanted, find_command(broker, find, as_stored=as_stored), as_stored)


def read_page(broker: BrokerContext, asked: PageRequest) -> Flow[tuple[list[Any], Range | None]]:
    """Read a requested page, and return the range of the rest.

    With a server, documents stay undecoded bytes when they were requested ``as_stored``.
    """
    wanted = asked.wanted
    try:
        documents, more = yield from _one_reply(broker, asked)
    except Exception as error:
        if wanted.where and is_refused_filter(error):
            raise FilterInvalid("where", f"the server refuses it: {refusal(error)}") from error
        raise
    return documents, replace(wanted, after=open_document(broker, documents[-1])) if more else None


def open_document(broker: BrokerContext, document: Document | bytes) -> Document:
    """Decode a document that may still be bytes; return an ``UnreadableDocument`` if that fails."""
    if not isinstance(document, bytes):
        return document
    try:
        return dict(broker.encoding.of_bytes(document))
    except InvalidBSON:
        return broker.encoding.read(document)


def _one_reply(broker: BrokerContext, asked: PageRequest) -> Flow[tuple[list[Any], bool]]:
    """Return the documents of the server's first reply (16 MB at most), and whether there may be more.

    The cursor is closed afterwards, and a page of large items takes no more memory than one reply.
    """
    if broker.serverless:
        reply: list[Document] = yield from asked.command
        return reply, len(reply) == asked.wanted.page
    try:
        cursor = yield from retry_once(asked.command, asked.pending)
        documents, id = read_stored_batch(cursor) if asked.as_stored else (cursor["firstBatch"], cursor["id"])
    except Unreadable:
        cursor = yield from find_undecoded(broker, asked.command)
        documents, id = cursor["firstBatch"], cursor["id"]
    if id:
        yield from close_cursor(broker, id)
    return documents, bool(id) or len(documents) == asked.wanted.page


class Chosen:
    """Reads documents by their ids, one page at a time.

    Attributes:
        missing: ids that no document was found for; it grows with each page.
    """

    def __init__(
        self, find: Callable[[list[Any]], Flow[list[Document]]], ids: list[Any], page: int, missing: Iterable[Any] = ()
    ) -> None:
        self._find, self._ids, self._page = find, ids, page
        self.missing = tuple(missing)

    def read(self, room: float) -> Flow[list[Any]]:
        """Read the next page, of ``room`` documents at most; it is empty at the end."""
        documents: list[Any] = []
        while self._ids and not documents:
            size = int(min(self._page, room))
            wanted, self._ids = self._ids[:size], self._ids[size:]
            documents = yield from self._find(wanted)
            there = {document["_id"] for document in documents}
            self.missing += tuple(id for id in wanted if id not in there)
        return documents


def is_refused_filter(error: Exception) -> bool:
    """Return whether an error is the server's answer to a filter that it cannot read."""
    return getattr(own_error(error), "code", None) in REFUSED_FILTER_CODES


def refusal(error: Exception) -> str:
    """Return the server's message without the rest of its reply."""
    details = getattr(own_error(error), "details", None)
    return str(details["errmsg"] if isinstance(details, Mapping) and "errmsg" in details else error)
