"""History: what was processed, oldest first, and what is live in the order of claims, in pages by key."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import NoneType
from typing import Any, Generic, TypeVar
from uuid import UUID

from bson import DatetimeMS, Decimal128, ObjectId, Regex, Timestamp
from bson.errors import InvalidBSON

from mongoq.errors import ArgumentInvalid, FilterInvalid
from mongoq.model.arguments import count, moment
from mongoq.model.encoding.codec import Encoding
from mongoq.model.filters import where_filter
from mongoq.model.indexes import BEGINNING
from mongoq.model.item import Document, Item
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import close_cursor, read_stored_batch
from mongoq.protocol.base.first_due import ORDER
from mongoq.protocol.flow.commands import Begin, Begun, Command, Flow, Interruption, Unreadable, insisted
from mongoq.protocol.history.read import Selection, in_state
from mongoq.protocol.state.context import BrokerContext, QueueContext

__all__ = [
    "PROCESSED_ORDER",
    "Page",
    "Range",
    "documents_page",
    "history_page",
    "history_range",
    "is_refused_filter",
    "opened",
    "refusal",
]

M = TypeVar("M")
PROCESSED_ORDER = [("processed", 1), ("_id", 1)]
REFUSED_FILTERS = (2, 9, 51091)
"""What the server answers to a filter that it cannot read: bad values, a pattern that does not compile."""


@dataclass(frozen=True, slots=True)
class Range:
    """What to read, and after which document to go on.

    Attributes:
        state: one state, or ``None`` for all live items.
        since: from when on: ``processed``, or ``when`` of live items.
        until: before when.
        where: the filter on payloads, translated; empty for all.
        page: how many documents at most in one page.
        started: what "now" means, for all pages.
        after: the document that was read last.
    """

    state: Selection
    since: datetime
    until: datetime | None
    where: Mapping[str, Any]
    page: int
    started: datetime | None = None
    after: Document | None = None

    @property
    def order(self) -> list[tuple[str, int]]:
        """Processed items oldest first, live ones as they would be claimed."""
        return PROCESSED_ORDER if self.state == "processed" else ORDER

    def behind(self, position: Any, encoding: Encoding) -> Range:
        """Return the range of what lies behind a position that ``Replayed`` has told."""
        if not isinstance(position, tuple | list) or len(position) != 2:
            raise ArgumentInvalid("after", f"a time and an id, as Replayed.position tells them, not {position!r:.100}")
        last = {"processed": moment(position[0], "after[0]"), "_id": position[1]}
        try:
            if isinstance(position[1], list | tuple | re.Pattern | Regex):
                raise TypeError("no document has such an id")
            encoding.size(last)
        except Exception as error:  # other programs may have used any id
            raise ArgumentInvalid("after[1]", f"the id of an item, not {position[1]!r:.100}: {error}") from error
        return replace(self, after=last)

    def narrowed(self, filter: Mapping[str, Any]) -> Range:
        """Return the range of those that match a filter of envelopes as well."""
        return replace(self, where={"$and": [self.where, filter]} if self.where else filter)

    def filter(self, queue: str) -> dict[str, Any]:
        """Return the filter of the rest; stubs, which have no payload, are left out."""
        date = "processed" if self.state == "processed" else "when"
        bounds: dict[str, Any] = {"$gte": self.since}
        if self.until is not None:
            bounds["$lt"] = self.until
        parts: list[Mapping[str, Any]] = [{date: bounds}] if date == "when" and bounds != {"$gte": BEGINNING} else []
        filter = in_state(queue, self.state, self.started or BEGINNING)
        if date == "processed":
            filter["processed"] = bounds
        if self.where:
            parts.append(self.where)
        filter |= self._rest(bounds)
        return {**filter, "$and": parts} if parts else filter

    def _rest(self, bounds: dict[str, Any]) -> dict[str, Any]:
        """Return what keeps to the documents behind the last one, in a form that one scan of the index answers."""
        last = self.after
        if last is None:
            return {}
        if self.state == "processed":
            bounds["$gte"] = last["processed"]
            return {"$or": [{"processed": {"$gt": last["processed"]}}, *_later_ids(last["_id"])]}
        priority = last.get("priority")  # some other program may have left it out, and then it comes first
        if priority != priority:  # noqa: PLR0124  # NaN, which comes next
            priority = None
        behind = [
            {"priority": {"$gt": -math.inf if priority is None else priority}},
            {"when": {"$gt": last["when"]}},
            *({"when": last["when"], **later} for later in _later_ids(last["_id"])),
        ]
        return {"$or": behind} | ({} if priority is None else {"priority": {"$gte": priority}})


COPIED = dict.fromkeys(("q", "processed", "payload", "priority", "headers", "attempts", "key"), 1)
"""The fields that a copy is made of."""
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
"""In the order in which the server sorts them; a comparison keeps to one type."""


def _later_ids(id: Any) -> list[dict[str, Any]]:
    """Return filters of the ids behind this one; other programs may have used any type for theirs."""
    if isinstance(id, ObjectId):
        return [{"_id": {"$gt": id}}]  # what may stand behind all of these is too rare to ask for it every time
    fits = [place for place, (_, kinds) in enumerate(_ID_TYPES) if isinstance(id, kinds)]
    own = fits[-1] if fits else len(_ID_TYPES)  # a bool is an int as well
    types = [name for name, _ in _ID_TYPES[own + 1 :]]
    later = {"$gte": -math.inf} if id != id else {"$gt": id}  # noqa: PLR0124  # NaN is the least number
    return [{"_id": later}, *([{"_id": {"$type": types}}] if types else [])]


@dataclass(frozen=True, slots=True)
class Page(Generic[M]):
    """Some items, and where to go on; ``None`` at the end."""

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
    """Check what to read."""
    first = BEGINNING if since is None else moment(since, "since")
    last = None if until is None else moment(until, "until")
    if last is not None and last < first:
        raise ArgumentInvalid("until", f"{until} lies before since, {since}")
    in_state(context.name, state, BEGINNING)
    filter = {} if where is None else where_filter(where, context.broker.encoding)
    return Range(state, first, last, filter, count(page, "page"))


def history_page(context: QueueContext[M], wanted: Range) -> Flow[Page[M]]:
    """Read one page (``find`` over the index of history or of claims, majority read concern)."""
    found, rest = yield from documents_page(context, wanted)
    return Page(context.items(found, context.broker.clock.now()), rest)


def documents_page(
    context: QueueContext[Any], wanted: Range, *, as_stored: bool = False, trails: bool = False
) -> Flow[tuple[list[Document], Range | None]]:
    """Read the documents of one page, no more than fit one reply, and say where to go on.

    With ``as_stored`` the documents within them are left as the bytes they are, and what no copy needs is left out,
    which is also the trails, unless they are asked for.
    """
    asked = yield from _asked(context, wanted, as_stored=as_stored, trails=trails)
    return (yield from page_read(context.broker, asked))


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A page that is asked for.

    Attributes:
        wanted: the range that it begins.
        command: what asks for it.
        as_stored: the documents are to come as the bytes that they are.
        begun: the command, if it is under way.
    """

    wanted: Range
    command: Command[Any]
    as_stored: bool = False
    begun: Begun | None = None


def page_begun(context: QueueContext[Any], wanted: Range, *, as_stored: bool, trails: bool) -> Flow[PageRequest]:
    """Ask for a page, and do not wait for it; without a server nothing is asked yet."""
    asked = yield from _asked(context, wanted, as_stored=as_stored, trails=trails)
    if context.broker.serverless:
        return asked
    return replace(asked, begun=(yield from Begin(asked.command)))


def _asked(context: QueueContext[Any], wanted: Range, *, as_stored: bool, trails: bool) -> Flow[PageRequest]:
    broker = context.broker
    yield from ensure_broker_ready(broker, write=False)
    if wanted.started is None:
        wanted = replace(wanted, started=broker.clock.now())
    find: dict[str, Any] = {"filter": wanted.filter(context.name), "sort": dict(wanted.order), "limit": wanted.page}
    if as_stored:
        find["projection"] = {**COPIED, "trail": 1} if trails else COPIED
    if broker.serverless:
        return PageRequest(wanted, Command("find", {**find, "sort": list(find["sort"].items())}, target="history"))
    command = {"find": broker.collection, **find, "batchSize": wanted.page, "readConcern": {"level": "majority"}}
    options = broker.encoding.undecoded if as_stored else broker.encoding.options
    arguments = {"command": command, "codec_options": options}
    return PageRequest(wanted, Command("command", arguments, target="database"), as_stored)


def page_read(broker: BrokerContext, asked: PageRequest) -> Flow[tuple[list[Any], Range | None]]:
    """Read a page that was asked for, and say where to go on.

    Where there is a server, documents come as their bytes when they were asked for ``as_stored``.
    """
    wanted = asked.wanted
    try:
        found, more = yield from _one_reply(broker, asked)
    except Exception as error:
        if wanted.where and is_refused_filter(error):
            raise FilterInvalid("where", f"the server refuses it: {refusal(error)}") from error
        raise
    return found, replace(wanted, after=opened(broker, found[-1])) if more else None


def opened(broker: BrokerContext, document: Document | bytes) -> Document:
    """Return a document that may be the bytes it came as; an ``UnreadableDocument`` where they cannot be decoded."""
    if not isinstance(document, bytes):
        return document
    try:
        return dict(broker.encoding.of_bytes(document))
    except InvalidBSON:
        return broker.encoding.read(document)


def _one_reply(broker: BrokerContext, asked: PageRequest) -> Flow[tuple[list[Any], bool]]:
    """Return what the server sends in its first reply (16 MB at most), and whether there may be more.

    No cursor is left open, and a page of large items takes no more memory than that.
    """
    if broker.serverless:
        found: list[Document] = yield from asked.command
        return found, len(found) == asked.wanted.page
    try:
        reply: Any = yield from insisted(asked.command, asked.begun)
        cursor = reply["cursor"]
        documents, id = read_stored_batch(cursor) if asked.as_stored else (cursor["firstBatch"], cursor["id"])
    except Unreadable:  # sent once more, to decode each by itself
        arguments = {**asked.command.arguments, "codec_options": broker.encoding.undecoded}
        reply = yield from insisted(replace(asked.command, arguments=arguments))
        raw, id = read_stored_batch(reply["cursor"])
        documents = [broker.encoding.read(document) for document in raw]
    if id:
        yield from close_cursor(broker, id)
    return documents, bool(id) or len(documents) == asked.wanted.page


def is_refused_filter(error: Exception) -> bool:
    """Say whether it is what the server answers to a filter that it cannot read."""
    return getattr(_cause(error), "code", None) in REFUSED_FILTERS


def refusal(error: Exception) -> str:
    """Return what the server said, without its whole reply."""
    details = getattr(_cause(error), "details", None)
    return str(details["errmsg"] if isinstance(details, Mapping) and "errmsg" in details else error)


def _cause(error: Exception) -> Exception:
    return error.cause if isinstance(error, Interruption) else error
