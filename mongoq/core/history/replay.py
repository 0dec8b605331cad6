"""Replay: push copies of processed items into the same or another queue, in their order, each once."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.core.base.bootstrap import ensure_broker_ready
from mongoq.core.base.find import find_few
from mongoq.core.base.queue_settings import ensure_ready
from mongoq.core.base.retry import retry_once
from mongoq.core.command import Command, Duplicate, PartlyRefused, WakeEvent, chunks
from mongoq.core.history.mistaken import log_no_history, refuse_mistake
from mongoq.core.history.query import BY_ID, Query, documents_page, make_query, open_document, read_ids
from mongoq.core.perform import perform, rest, run_beside, sleep
from mongoq.core.settle.move import Destination, destination
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.arguments import REASON_BYTES, Duration, Id, count, duration, queue_name, text
from mongoq.data.arguments import priority as checked_priority
from mongoq.data.copies import (
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
from mongoq.data.encoding.codec import UnreadableDocument
from mongoq.data.envelope import new_envelope, origin_document, shorten
from mongoq.data.item import Document, Item, payload_at
from mongoq.errors import ArgumentInvalid, BrokerClosed, PayloadTooLarge

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
LONGEST_WAIT_SECONDS = 60.0
"""Seconds after which a caller looks again whether its insert has ended."""
COPIED_FIELDS: dict[str, int] = dict.fromkeys(
    ("q", "processed", "payload", "priority", "headers", "attempts", "key"), 1
)
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
    dry_run: Any,
    page: int,
) -> Replayed:
    """Copy processed items, page by page and chunk by chunk; all arguments are checked before anything is sent."""
    task = _Task(
        context,
        hop_destination(context, hop, to) or destination(context, context),
        text(label, "label", LABEL_BYTES),
        duration(once, "once", zero=False),
        timedelta(0) if delay is None else duration(delay, "delay"),
        None if priority is None else checked_priority(priority),
        transform,
        dry_run,
        hop,
    )
    room = math.inf if limit is None else count(limit, "limit")
    callbacks: tuple[tuple[Any, str], ...] = ((transform, "transform"), (progress, "progress"))
    for function, argument in callbacks:
        if function is not None and (not callable(function) or inspect.iscoroutinefunction(function)):
            raise ArgumentInvalid(argument, f"a plain function, which is not awaited, not {function!r}")
    if not isinstance(dry_run, bool):
        raise ArgumentInvalid("dry_run", f"True or False, not {dry_run!r}")
    pace: Any = math.inf if rate is None else rate
    if rate is not None and (isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 < pace < math.inf):
        raise ArgumentInvalid("rate", f"copies per second, a number above 0, not {rate!r}")
    query = make_query(context, state="processed", page=page, since=since, until=until, where=where)
    if after is not None:
        if since is not None:
            raise ArgumentInvalid("after", "says where to begin, and so does since=; leave one of them out")
        query = query.behind(after, context.broker.encoding)
    if ids is not None:
        for argument, value in {"since": since, "until": until, "after": after, "where": where}.items():
            if value is not None:
                raise ArgumentInvalid(argument, "choose by ids=, or by since=, until=, after= and where=, not by both")
        query = replace(query, ids=read_ids(ids))
    if dry_run:
        # It writes nothing, not even the options of a handle.
        await ensure_broker_ready(context.broker, write=False)
    else:
        await ensure_ready(context, fresh=False)
        if isinstance(to, QueueContext):
            await ensure_ready(QueueContext(context.broker, to.options, to.codec), fresh=False)
    missing: tuple[ObjectId, ...] = ()
    rest: Query | None = query
    if query.ids is None:
        # The end of the range is fixed now. Copies that a replay made into this queue are left out by their mark, so
        # the clocks need not agree.
        end = query.until or context.broker.clock.now() + CLOCK_TOLERANCE
        rest = replace(query, until=end).narrow({COPY_MARK: {"$ne": context.name}})
    else:
        fields, keys = {"processed": 1}, list[Document]()
        for part in query.split(IDS_PER_FIND):
            options: dict[str, Any] = {"projection": fields, "hint": BY_ID, "target": "history"}
            keys += await find_few(context.broker, part.filter(context.name), [("_id", 1)], IDS_PER_FIND, **options)
        order = tuple(key["_id"] for key in sorted(keys, key=lambda key: (key["processed"], key["_id"])))
        missing = tuple(id for id in query.ids if id not in set(order))
        rest = replace(query, ids=order) if order else None
    result = await _copy_all(task, rest, missing, room=room, rate=pace, progress=progress or (lambda _: None))
    if not result.found and query.ids != ():
        await refuse_mistake(context, letters=False)
        await log_no_history(context)
    return result


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


@dataclass(slots=True)
class _Task:
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
        self.ids = CopyIds(self.target.name, self.label, self.hop)
        self.cutter = Cutter(self.context.name)

    @property
    def as_stored(self) -> bool:
        """True when payloads are copied without decoding them."""
        return self.transform is None and self.target.codec.untyped

    @property
    def fields(self) -> Mapping[str, int] | None:
        """Projection of items that are read as bytes; ``None`` for items that are decoded whole."""
        if not self.as_stored:
            return None
        return COPIED_FIELDS if self.hop is None else {**COPIED_FIELDS, "trail": 1}


async def _copy_all(
    task: _Task,
    rest: Query | None,
    missing: tuple[ObjectId, ...],
    *,
    room: float,
    rate: float,
    progress: Progress,
) -> Replayed:
    """Copy chunk by chunk; while the server inserts one chunk, this process reads and makes the next.

    ``rate`` is the number of copies per second, at most; copies that exist already do not count. ``missing`` are ids
    that no item was found for.
    """
    result, found, free = Replayed(), list[Any](), -math.inf
    pending: _Chunk | None = None

    async def finish(pending: _Chunk) -> None:
        nonlocal result, free
        more = await pending.receive()
        free += more.pushed / rate
        result = replace(result + more, missing=missing)
        progress(result)

    while True:
        try:
            while not found and room > 0 and rest is not None:
                page = replace(rest, page=int(min(rest.page, room)))
                found, rest = await documents_page(task.context, page, fields=task.fields)
                room -= len(found)
                if page.ids is not None:
                    there = {document["_id"] for document in found}
                    missing += tuple(id for id in page.ids[: page.page] if id not in there)
            # Small enough to keep the rate within a second.
            size = max(1, int(min(len(found), rate / CHUNKS_PER_SECOND)))
            documents, found = found[:size], found[size:]
            chunk = _Chunk(task, documents) if documents else None
        # The insert under way has to be answered and counted before the error goes to the caller.
        except Exception:
            if pending is not None:
                await finish(pending)
            raise
        if pending is not None:
            await finish(pending)
        if chunk is None:
            return replace(result, missing=missing)
        if not task.dry_run:
            if (pause := free - time.monotonic()) > 0:
                await sleep(pause)
            free = time.monotonic()
        await chunk.send()
        pending = chunk


class _Copy(NamedTuple):
    """A copy: its id, its original, and a function that makes it when its time is known."""

    id: bytes
    original: Document | bytes
    make: Callable[[datetime], RawBSONDocument]


class _Chunk:
    """Copies of some documents, in their order, and what becomes of them; each document may still be bytes."""

    def __init__(self, task: _Task, documents: list[Document | bytes]) -> None:
        self._task = task
        self._skipped = 0
        self._refusals: list[tuple[ObjectId, str]] = []
        self._priorities: set[int] = set()
        # By the bytes behind the payloads, which documents of one stencil have in common.
        self._stencils: dict[bytes, CopyStencil] = {}
        broker = task.context.broker
        now = broker.clock.now()
        planned = [copy for document in documents if (copy := self._plan(document, now)) is not None]
        end = broker.clock.stamp() + task.delay
        whens = task.line.places([copy.id for copy in planned], end)
        self._due = min(whens, default=end)
        self._ids: list[bytes] = []
        copies: list[RawBSONDocument] = []
        for copy, when in zip(planned, whens, strict=True):
            made = copy.make(when)
            if len(made.raw) <= MAX_DOCUMENT_BYTES:
                self._ids.append(copy.id)
                copies.append(made)
            else:
                # Other programs may fill a document up to the server's limit; the marks of a copy then no longer fit.
                original = open_document(broker, copy.original)["_id"]
                self._refuse(original, PayloadTooLarge("payload", len(made.raw), MAX_DOCUMENT_BYTES))
        self._parts = list(chunks(copies, lambda copy: len(copy.raw)))
        self._found, self._last = len(documents), open_document(broker, documents[-1])
        self._pushed = 0
        self._done = WakeEvent()
        self._error: BaseException | None = None

    def _refuse(self, id: ObjectId, reason: object) -> None:
        self._refusals.append((id, shorten(str(reason), REASON_BYTES)))

    def _plan(self, document: Document | bytes, now: datetime) -> _Copy | None:
        """Return the copy of a document; ``None`` for one that is skipped, or refused with the reason."""
        task = self._task
        # The fast way: a document with a known tail is copied as bytes, without decoding it.
        cut = task.cutter.cut(document) if type(document) is bytes and task.hop is None else None
        if cut is not None and cut[2] in self._stencils:
            id, payload, rest, processed = cut
            copy = task.ids.id(id, processed)
            return _Copy(copy, document, partial(self._stencils[rest].copy, copy, payload, id))
        document = open_document(task.context.broker, document)
        if isinstance(document, UnreadableDocument):
            self._refuse(document["_id"], document.problem)
            return None
        envelope = self._make_envelope(document, now)
        if envelope is None:
            return None
        encoding = task.context.broker.encoding
        if cut is not None and fields_of(cut[2]) == STENCIL_FIELDS:
            self._stencils[cut[2]] = CopyStencil(encoding, envelope)
        return _Copy(envelope["_id"].binary, document, lambda when: encoding.raw({**envelope, "when": when}))

    def _make_envelope(self, document: Document, now: datetime) -> dict[str, Any] | None:
        """Return the envelope of a copy: new except for payload, priority and headers, with an ``origin``.

        The key is not used again, because a newer item may have it by now. ``None`` for an item that is left out.
        Errors of the caller's own function end the replay, so that they are not caught.
        """
        task, item = self._task, self._task.context.raw_item(document, now)
        try:
            typed = item
            if task.hop is not None:
                # The payload at a hop belongs to another queue, so this queue's type does not apply to it.
                typed = item = item.with_payload(payload_at(item.stored("trail"), task.hop))
            elif task.transform is not None:
                typed = task.context.decode_payload(item)
            if task.transform is None and not task.as_stored:
                # Checks that the target's type can read it; the copy still gets the stored form.
                task.target.codec.load(item.payload)
        except ArgumentInvalid as invalid:
            self._refuse(item.id, invalid)
            return None
        payload = item.payload if task.transform is None else task.transform(typed.payload, typed)
        if task.transform is not None and payload is None:
            hint = "return the payload, or mongoq.SKIP to leave the item out"
            raise ArgumentInvalid("transform", f"returned None for item {item.id}; {hint}")
        if task.transform is not None and payload is SKIP:
            self._skipped += 1
            return None
        try:
            if task.transform is not None:
                payload = task.target.codec.encode(payload)
            priority = checked_priority(item.priority) if task.priority is None else task.priority
        except ArgumentInvalid as invalid:
            self._refuse(item.id, invalid)
            return None
        self._priorities.add(priority)
        options: dict[str, Any] = {"priority": priority, "headers": item.headers or None, "once": now + task.once}
        envelope = new_envelope(task.target.name, payload, id=task.ids.of(document), when=now, **options)
        return envelope | mark_copy(item, task.label, now)

    async def send(self) -> None:
        """Push the copies (``insert`` of many, unordered), without waiting where there is a server."""
        if self._task.dry_run:
            filter = {"_id": {"$in": [*map(ObjectId, self._ids)]}}
            find: Command[Any] = Command("find", {"filter": filter, "projection": {"_id": 1}}, target="history")
            self._pushed = len(self._ids) - len(await perform(find))
            self._done.set()
        elif self._task.context.broker.serverless:
            await self._insert_all()
        else:
            self._error = BrokerClosed()  # unless the inserts come to their end
            run_beside(self._insert_all, self._done.set, copy_context())

    async def _insert_all(self) -> None:
        """Insert the copies, again after a lost reply, and count the new ones."""
        try:
            for part in self._parts:
                try:
                    await retry_once(Command("insert_many", {"documents": part, "ordered": False}))
                    self._pushed += len(part)
                except PartlyRefused as refused:
                    # A copy has the same id each time it is made, so a duplicate is a copy that was pushed before.
                    if not all(isinstance(error, Duplicate) for error in refused.refusals.values()):
                        raise
                    self._pushed += len(part) - len(refused.refusals)
            self._error = None
        except BaseException as error:  # for the caller
            self._error = error if isinstance(error, Exception) else BrokerClosed()  # async only: ``close`` cancels it
            # sync only: self._error = error
        finally:
            self._done.set()

    async def receive(self) -> Replayed:
        """Wait for the copies that were sent, and return the result."""
        is_done = False
        while not is_done:
            await rest(self._done, LONGEST_WAIT_SECONDS)
            is_done = self._done.was_set
        if self._error is not None:
            raise self._error
        task = self._task
        if not task.dry_run:
            task.context.broker.record_put(task.target.name, self._due, *self._priorities, number=self._pushed)
        return Replayed(
            found=self._found,
            pushed=self._pushed,
            already=len(self._ids) - self._pushed,
            skipped=self._skipped,
            refused=len(self._refusals),
            refusals=tuple(self._refusals[:MAX_REFUSALS]),
            position=(self._last["processed"], self._last["_id"]),
        )


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
