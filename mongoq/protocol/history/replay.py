"""Replay: push copies of processed items into the same or another queue, in their order, each once."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.errors import ArgumentInvalid, PayloadTooLarge
from mongoq.model.arguments import REASON_BYTES, Duration, Id, count, duration, object_id, queue_name, read_list, text
from mongoq.model.arguments import priority as checked_priority
from mongoq.model.copies import (
    COPY_MARK,
    MAX_REFUSALS,
    SKIP,
    CopyIds,
    CopyStencil,
    Cutter,
    Replayed,
    ReplayOrder,
    fields_of,
)
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.model.envelope import new_envelope, origin_document, shorten
from mongoq.model.item import Document, Item, payload_at
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.retry import retry_once
from mongoq.protocol.command import Begun, Command, chunks, own_error
from mongoq.protocol.history.mistaken import log_no_history, refuse_mistake
from mongoq.protocol.history.query import Query, documents_page, make_query, open_document
from mongoq.protocol.perform import begin, perform, sleep
from mongoq.protocol.settle.move import Destination, destination
from mongoq.protocol.state.context import BrokerContext, QueueContext

LABEL_BYTES = 100
"""Bytes of a label, at most."""
IDS_PER_FIND = 1000
"""Ids in one ``find``, at most."""
CLOCK_TOLERANCE = timedelta(seconds=1)
"""Tolerance for commits answered before the replay, which may be dated later than our now; clocks agree far better."""
CHUNKS_PER_SECOND = 4
"""Inserts per second when a rate limits the replay."""
MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
"""Bytes of one document, at most; the server refuses larger ones."""
DUPLICATE_KEY_CODE = 11000
"""Code of the server's error for an id that exists already."""
COPIED_FIELDS = dict.fromkeys(("q", "processed", "payload", "priority", "headers", "attempts", "key"), 1)
"""Fields that a copy is made from."""
STENCIL_FIELDS = frozenset(("priority", "attempts"))
"""Fields behind the payloads of most items that copies depend on. Only these can share a stencil."""
ORIGINALS_TOGETHER = 500
"""Originals of copies that one command reads."""

Transform = Callable[[Any, Item[Any]], Any]
Progress = Callable[[Replayed], object]
"""Function of the caller that receives the totals after each chunk."""


async def replay(
    context: QueueContext[Any],
    *,
    to: str | QueueContext[Any] | None,
    hop: str | None,
    ids: Iterable[Id] | None,
    since: datetime | None,
    until: datetime | None,
    after: Any,
    where: Any,
    limit: int | None,
    label: str,
    transform: Transform | None,
    delay: Duration | None,
    priority: int | None,
    once: Duration,
    rate: float | None,
    progress: Progress | None,
    dry_run: bool,
    page: int,
) -> Replayed:
    """Copy processed items, page by page and chunk by chunk; all arguments are checked before anything is sent."""
    task = Task(
        context,
        hop_destination(context, hop, to) or destination(context, context),
        text(label, "label", LABEL_BYTES),
        duration(once, "once", zero=False),
        timedelta(0) if delay is None else duration(delay, "delay"),
        None if priority is None else checked_priority(priority),
        _check_function(transform, "transform"),
        _check_flag(dry_run, "dry_run"),
        hop,
    )
    _check_function(progress, "progress")
    room = math.inf if limit is None else count(limit, "limit")
    pace = _check_rate(rate)
    query = make_query(context, since=since, until=until, where=where, state="processed", page=page)
    if after is not None and since is not None:
        raise ArgumentInvalid("after", "says where to begin, and so does since=; leave one of them out")
    if after is not None:
        query = query.behind(after, context.broker.encoding)
    if ids is not None:
        query = replace(query, ids=_check_ids(ids, since=since, until=until, after=after, where=where))
    if dry_run:
        # It writes nothing, not even the options of a handle.
        await ensure_broker_ready(context.broker, write=False)
    else:
        await ensure_ready(context, fresh=False)
        if isinstance(to, QueueContext):
            await ensure_ready(QueueContext(context.broker, to.options, to.codec), fresh=False)
    source = _Source(task, query)
    if query.ids is not None:
        await source.locate(query.ids)
    result = await _copy_all(task, source, room, pace, progress or (lambda _: None))
    if not result.found and query.ids != ():
        await refuse_mistake(context, letters=False)
        await log_no_history(context)
    return result


def _check_function(value: Any, argument: str) -> Any:
    if value is not None and (not callable(value) or inspect.iscoroutinefunction(value)):
        raise ArgumentInvalid(argument, f"a plain function, which is not awaited, not {value!r}")
    return value


def _check_flag(value: Any, argument: str) -> bool:
    if not isinstance(value, bool):
        raise ArgumentInvalid(argument, f"True or False, not {value!r}")
    return value


def _check_rate(rate: Any) -> float:
    if rate is None:
        return math.inf
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise ArgumentInvalid("rate", f"copies per second, a number above 0, not {rate!r}")
    return rate


def _check_ids(ids: Any, **other_arguments: Any) -> tuple[ObjectId, ...]:
    for name, value in other_arguments.items():
        if value is not None:
            raise ArgumentInvalid(name, "choose by ids=, or by since=, until=, after= and where=, not by both")
    return tuple(dict.fromkeys(object_id(id, f"ids[{n}]") for n, id in enumerate(read_list(ids, "ids"))))


def hop_destination(
    context: QueueContext[Any], hop: str | None, to: str | QueueContext[Any] | None
) -> Destination | None:
    """Return the destination of items, by a hop or by ``to``; ``None`` when neither is given.

    A hop is named by its queue, because a stage may have several input queues.
    """
    target = None if to is None else destination(context, to)
    if hop is None:
        return target
    name = queue_name(hop, "hop")
    if target is None:
        return Destination(name, context.broker.untyped)
    if target.name != name:
        raise ArgumentInvalid("to", f"a hop goes to its own queue, {name!r}, and not to {target.name!r}; leave it out")
    return target


@dataclass(frozen=True, slots=True)
class Task:
    """A checked replay: its queue, its target, and how each copy is made.

    With a ``hop``, a copy has the payload that the item had when it left that queue.
    """

    context: QueueContext[Any]
    target: Destination
    label: str
    once: timedelta
    delay: timedelta
    priority: int | None
    transform: Transform | None
    dry_run: bool
    hop: str | None
    line: ReplayOrder = field(default_factory=ReplayOrder)
    ids: CopyIds = field(init=False)
    cutter: Cutter = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", CopyIds(self.target.name, self.label, self.hop))
        object.__setattr__(self, "cutter", Cutter(self.context.name))

    @property
    def as_stored(self) -> bool:
        """True when payloads are copied without decoding them."""
        return self.transform is None and self.target.codec.untyped


class _Source:
    """Reads the items to copy, oldest first: those with the ids of the query, or those between two times.

    The end of the range is fixed at the beginning, and copies that a replay made into this queue are left out by their
    mark, so the clocks need not agree. Items that are copied without decoding are read as bytes.

    Attributes:
        missing: ids that no item was found for; it grows with each page.
    """

    def __init__(self, task: Task, query: Query) -> None:
        context = self._context = task.context
        self.missing: tuple[ObjectId, ...] = ()
        trail = {} if task.hop is None else {"trail": 1}
        self._projection = {**COPIED_FIELDS, **trail} if task.as_stored else None
        if query.ids is None:
            until = query.until or context.broker.clock.now() + CLOCK_TOLERANCE
            query = replace(query, until=until).narrow({COPY_MARK: {"$ne": context.name}})
        self._rest: Query | None = query
        self._page = query.page

    async def locate(self, ids: Sequence[ObjectId]) -> None:
        """Read which of the ids are in the history, and their order (``find`` by ``_id``)."""
        documents: list[Document] = []
        for start in range(0, len(ids), IDS_PER_FIND):
            documents += await self._find(ids[start : start + IDS_PER_FIND], {"q": 1, "processed": 1})
        order = [document["_id"] for document in sorted(documents, key=_processing_order)]
        there = set(order)
        self.missing = tuple(id for id in ids if id not in there)
        assert self._rest is not None
        self._rest = replace(self._rest, ids=tuple(order)) if order else None

    async def read(self, room: float) -> list[Document | bytes]:
        """Read the next page, ``room`` documents of it at most; it is empty at the end."""
        documents: list[Document | bytes] = []
        size = int(min(self._page, room))
        while not documents and self._rest is not None:
            query = self._rest
            if query.ids is None:
                page = replace(query, page=size)
                documents, self._rest = await documents_page(self._context, page, fields=self._projection)
            else:
                ids = query.ids[:size]
                found = await self._find(ids, None)
                there = {document["_id"] for document in found}
                self.missing += tuple(id for id in ids if id not in there)
                self._rest = replace(query, ids=query.ids[size:]) if len(query.ids) > size else None
                documents = list(found)
        return documents

    async def _find(self, ids: Sequence[ObjectId], fields: dict[str, int] | None) -> list[Document]:
        """Find items of the history by their ids, with no other indexed field: the server considers one index only."""
        filter = {"_id": {"$in": list(ids)}, "payload": {"$exists": True}}
        documents = await find_few(
            self._context.broker, filter, [("_id", 1)], len(ids), projection=fields, target="history", lenient=True
        )
        kept = [each for each in documents if each.get("q") == self._context.name and each.get("processed")]
        return sorted(kept, key=_processing_order)


def _processing_order(document: Document) -> tuple[Any, Any]:
    return document["processed"], document["_id"]


async def _copy_all(task: Task, source: _Source, room: float, rate: float, progress: Progress) -> Replayed:
    """Copy chunk by chunk; while the server inserts one chunk, this process reads and makes the next.

    ``rate`` is the number of copies per second, at most; copies that exist already do not count.
    """
    result, found, free = Replayed(), list[Document | bytes](), -math.inf
    pending: Copies | None = None

    async def finish(pending: Copies) -> None:
        nonlocal result, free
        more = await pending.receive(task)
        free += more.pushed / rate
        result = replace(result + more, missing=source.missing)
        progress(result)

    while True:
        try:
            if not found and room > 0:
                found = await source.read(room)
                room -= len(found)
            # Small enough to keep the rate within a second.
            size = max(1, int(min(len(found), rate / CHUNKS_PER_SECOND)))
            chunk, found = found[:size], found[size:]
            copies = copies_of(task, chunk) if chunk else None
        # The insert under way has to be answered and counted before the error goes to the caller.
        except Exception:
            if pending is not None:
                await finish(pending)
            raise
        if pending is not None:
            await finish(pending)
        if copies is None:
            return replace(result, missing=source.missing)
        if not task.dry_run:
            if (pause := free - time.monotonic()) > 0:
                await sleep(pause)
            free = time.monotonic()
        await copies.send(task)
        pending = copies


class _Copy(NamedTuple):
    """A copy: its id, its original, and a function that makes it when its time is known."""

    id: bytes
    original: Document | bytes
    make: Callable[[datetime], RawBSONDocument]


@dataclass(slots=True)
class Copies:
    """Copies of some documents, in their order.

    Attributes:
        ids: ids of the copies.
        parts: inserts that push them, bounded in bytes.
        result: counts that are known before any copy is pushed.
        due: the time from which on the first of them is eligible.
        priorities: their priorities.
        pushed: copies that were pushed; set by ``send`` and ``receive``.
        pending: the last insert while it is under way, set by ``send``; ``None`` when there is nothing to wait for.
    """

    ids: list[bytes]
    parts: list[list[RawBSONDocument]]
    result: Replayed
    due: datetime
    priorities: set[int]
    pushed: int = 0
    pending: Begun | None = None

    async def send(self, task: Task) -> None:
        """Push the copies (``insert`` of many, unordered) without waiting for the last of the inserts.

        Every insert is safe to send again: copies that had arrived are refused as duplicates.
        """
        if task.dry_run:
            there: list[Document] = []
            if self.ids:
                filter = {"_id": {"$in": [*map(ObjectId, self.ids)]}}
                there = await perform(Command("find", {"filter": filter, "projection": {"_id": 1}}, target="history"))
            self.pushed = len(self.ids) - len(there)
            return
        for part in self.parts[:-1]:
            self.pushed += await _insert(part)
        if self.parts and task.context.broker.serverless:
            self.pushed += await _insert(self.parts[-1])
        elif self.parts:
            self.pending = await begin(_insertion(self.parts[-1]))

    async def receive(self, task: Task) -> Replayed:
        """Wait for the copies that were sent, and return the result."""
        if self.pending is not None:
            # The earlier inserts were waited for in ``send``; only the last one may still be under way.
            self.pushed += await _insert(self.parts[-1], self.pending)
        if not task.dry_run:
            task.context.broker.record_put(task.target.name, self.due, *self.priorities, number=self.pushed)
        return replace(self.result, pushed=self.pushed, already=len(self.ids) - self.pushed)


def copies_of(task: Task, documents: list[Document | bytes]) -> Copies:
    """Make the copies of some documents; each may still be the bytes that the server sent."""
    broker = task.context.broker
    batch, now = _Batch(task), broker.clock.now()
    for document in documents:
        batch.add(document, now)
    end = broker.clock.stamp() + task.delay
    whens = task.line.places([copy.id for copy in batch.copies], end)
    ids: list[bytes] = []
    copies: list[RawBSONDocument] = []
    for copy, when in zip(batch.copies, whens, strict=True):
        made = copy.make(when)
        if len(made.raw) <= MAX_DOCUMENT_BYTES:
            ids.append(copy.id)
            copies.append(made)
        else:
            # Other programs may fill a document up to the server's limit; the marks of a copy then no longer fit.
            original = open_document(broker, copy.original)["_id"]
            batch.refuse(original, PayloadTooLarge("payload", len(made.raw), MAX_DOCUMENT_BYTES))
    last = open_document(broker, documents[-1])
    result = Replayed(
        found=len(documents),
        skipped=batch.skipped,
        refused=len(batch.refusals),
        refusals=tuple(batch.refusals[:MAX_REFUSALS]),
        position=(last["processed"], last["_id"]),
    )
    parts = list(chunks(copies, lambda copy: len(copy.raw)))
    return Copies(ids, parts, result, min(whens, default=end), batch.priorities)


class _Batch:
    """Results for some documents: copies, refusals, and a count of skipped items.

    Attributes:
        copies: copies to make, in the order of the documents.
        refusals: ids of items that cannot be copied, each with the reason.
        skipped: items that ``transform`` left out.
        priorities: the priorities of the copies.
    """

    def __init__(self, task: Task) -> None:
        self.copies: list[_Copy] = []
        self.refusals: list[tuple[ObjectId, str]] = []
        self.skipped = 0
        self.priorities: set[int] = set()
        self._task = task
        # By the bytes behind the payloads, which documents of one stencil have in common.
        self._stencils: dict[bytes, CopyStencil] = {}

    def refuse(self, id: ObjectId, reason: object) -> None:
        """Note that an item cannot be copied."""
        self.refusals.append((id, shorten(str(reason), REASON_BYTES)))

    def add(self, document: Document | bytes, now: datetime) -> None:
        """Prepare the copy of a document, or note why there is none."""
        task = self._task
        # The fast way: a document with a known tail is copied as bytes, without decoding it.
        cut = task.cutter.cut(document) if type(document) is bytes and task.hop is None else None
        if cut is not None and cut[2] in self._stencils:
            id, payload, rest, processed = cut
            copy = task.ids.id(id, processed)
            make = partial(self._stencils[rest].copy, copy, payload, id)
            self.copies.append(_Copy(copy, document, make))
            return
        document = open_document(task.context.broker, document)
        if isinstance(document, UnreadableDocument):
            self.refuse(document["_id"], document.problem)
            return
        item = task.context.raw_item(document, now)
        try:
            envelope = self._envelope(document, item, now)
        except _Unfit as unfit:
            self.refuse(item.id, unfit.__cause__)
            return
        if envelope is None:
            self.skipped += 1
            return
        self.priorities.add(envelope["priority"])
        encoding = task.context.broker.encoding
        if cut is not None and fields_of(cut[2]) == STENCIL_FIELDS:
            self._stencils[cut[2]] = CopyStencil(encoding, envelope)
        self.copies.append(
            _Copy(envelope["_id"].binary, document, lambda when: encoding.raw({**envelope, "when": when}))
        )

    def _envelope(self, document: Document, item: Item[Any], now: datetime) -> dict[str, Any] | None:
        """Return the envelope of a copy: new except for payload, priority and headers, with an ``origin``.

        The key is not used again, because a newer item may have it by now. ``None`` for an item to skip.
        """
        task, typed = self._task, item
        try:
            if task.hop is not None:
                item = item.with_payload(payload_at(item.stored("trail"), task.hop))
            payload = item.payload
            if task.transform is not None:
                # The payload at a hop belongs to another queue, so this queue's type does not apply to it.
                typed = task.context.decode_payload(item) if task.hop is None else item
            elif not task.as_stored:
                # Checks that the target's type can read it; the copy still gets the stored form.
                task.target.codec.load(payload)
        except ArgumentInvalid as invalid:
            raise _Unfit from invalid
        if task.transform is not None:
            payload = task.transform(typed.payload, typed)
            if payload is None:
                hint = "return the payload, or mongoq.SKIP to leave the item out"
                raise ArgumentInvalid("transform", f"returned None for item {item.id}; {hint}")
            if payload is SKIP:
                return None
        try:
            if task.transform is not None:
                payload = task.target.codec.encode(payload)
            priority = checked_priority(item.priority) if task.priority is None else task.priority
        except ArgumentInvalid as invalid:
            raise _Unfit from invalid
        options: dict[str, Any] = {"priority": priority, "headers": item.headers or None, "once": now + task.once}
        envelope = new_envelope(task.target.name, payload, id=task.ids.of(document), when=now, **options)
        return envelope | mark_copy(item, task.label, now)


class _Unfit(Exception):
    """Raised for an item that cannot be copied; errors of the caller's own function are not turned into it."""


def mark_copy(item: Item[Any], label: str | None, now: datetime) -> dict[str, Any]:
    """Return the fields by which a copy shows its original: no replay of the original's queue copies it."""
    reason = f"replayed: {label}" if label else "replayed"
    return {"origin": origin_document(item, reason=reason, attempts=item.attempts, at=now), COPY_MARK: item.queue}


async def find_originals(
    broker: BrokerContext, copies: Mapping[bytes, ObjectId], label: str
) -> dict[bytes, dict[str, Any]]:
    """Return the fields that copies take over from their originals, by the ids of the copies (``find`` by ``_id``).

    Originals that do not exist are left out.
    """
    await ensure_broker_ready(broker, write=False)
    wanted, found, now = list(set(copies.values())), {}, broker.clock.now()
    fields: dict[str, int] = dict.fromkeys(("q", "key", "headers", "attempts"), 1)
    for start in range(0, len(wanted), ORIGINALS_TOGETHER):
        ids = wanted[start : start + ORIGINALS_TOGETHER]
        filter = {"_id": {"$in": ids}, "q": {"$type": "string"}, "payload": {"$exists": True}}
        for document in await find_few(broker, filter, [("_id", 1)], len(ids), projection=fields):
            headers = {"headers": document["headers"]} if isinstance(document.get("headers"), Mapping) else {}
            found[document["_id"]] = headers | mark_copy(Item(document, None, now, broker.namespace), label, now)
    return {copy: found[original] for copy, original in copies.items() if original in found}


def _insertion(envelopes: list[RawBSONDocument]) -> Command[Any]:
    return Command("insert_many", {"documents": envelopes, "ordered": False})


async def _insert(envelopes: list[RawBSONDocument], pending: Begun | None = None) -> int:
    """Insert new copies, or wait for an insert under way; return how many are new. Send again after a lost reply."""
    try:
        await retry_once(_insertion(envelopes), pending)
    except Exception as error:
        details = getattr(own_error(error), "details", None)
        if not isinstance(details, Mapping) or details.get("writeConcernErrors"):
            raise
        failures = details.get("writeErrors")
        # A copy has the same id each time it is made, so a duplicate is a copy that was pushed before.
        if not failures or any(failure["code"] != DUPLICATE_KEY_CODE for failure in failures):
            raise
        return len(envelopes) - len(failures)
    return len(envelopes)
