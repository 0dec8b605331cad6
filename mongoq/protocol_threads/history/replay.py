# Generated from mongoq/protocol/history/replay.py by scripts/unasync.py. Do not edit.
"""Replay: push copies of processed items into the same or another queue, in their order, each once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.errors import ArgumentInvalid, PayloadTooLarge
from mongoq.model.arguments import Duration, Id, count, duration, text
from mongoq.model.arguments import priority as checked_priority
from mongoq.model.copies import (
    COPY_MARK,
    MAX_REFUSALS,
    Replayed,
)
from mongoq.model.item import Document, Item
from mongoq.protocol.command import Begun, Command, chunks, own_error
from mongoq.protocol.history.query import Query, make_query, open_document
from mongoq.protocol.history.replay import (
    CHUNKS_PER_SECOND,
    CLOCK_TOLERANCE,
    COPIED_FIELDS,
    DUPLICATE_KEY_CODE,
    IDS_PER_FIND,
    LABEL_BYTES,
    MAX_DOCUMENT_BYTES,
    ORIGINALS_TOGETHER,
    Progress,
    Task,
    Transform,
    _Batch,
    _check_flag,
    _check_function,
    _check_ids,
    _check_rate,
    _insertion,
    _processing_order,
    hop_destination,
    mark_copy,
)
from mongoq.protocol.settle.move import destination
from mongoq.protocol.state.context import BrokerContext, QueueContext
from mongoq.protocol_threads.base.bootstrap import ensure_broker_ready
from mongoq.protocol_threads.base.find import find_few
from mongoq.protocol_threads.base.queue_settings import ensure_ready
from mongoq.protocol_threads.base.retry import retry_once
from mongoq.protocol_threads.history.mistaken import log_no_history, refuse_mistake
from mongoq.protocol_threads.history.query import documents_page
from mongoq.protocol_threads.perform import begin, perform, sleep


def replay(
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
        ensure_broker_ready(context.broker, write=False)
    else:
        ensure_ready(context, fresh=False)
        if isinstance(to, QueueContext):
            ensure_ready(QueueContext(context.broker, to.options, to.codec), fresh=False)
    source = _Source(task, query)
    if query.ids is not None:
        source.locate(query.ids)
    result = _copy_all(task, source, room, pace, progress or (lambda _: None))
    if not result.found and query.ids != ():
        refuse_mistake(context, letters=False)
        log_no_history(context)
    return result


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

    def locate(self, ids: Sequence[ObjectId]) -> None:
        """Read which of the ids are in the history, and their order (``find`` by ``_id``)."""
        documents: list[Document] = []
        for start in range(0, len(ids), IDS_PER_FIND):
            documents += self._find(ids[start : start + IDS_PER_FIND], {"q": 1, "processed": 1})
        order = [document["_id"] for document in sorted(documents, key=_processing_order)]
        there = set(order)
        self.missing = tuple(id for id in ids if id not in there)
        assert self._rest is not None
        self._rest = replace(self._rest, ids=tuple(order)) if order else None

    def read(self, room: float) -> list[Document | bytes]:
        """Read the next page, ``room`` documents of it at most; it is empty at the end."""
        documents: list[Document | bytes] = []
        size = int(min(self._page, room))
        while not documents and self._rest is not None:
            query = self._rest
            if query.ids is None:
                page = replace(query, page=size)
                documents, self._rest = documents_page(self._context, page, fields=self._projection)
            else:
                ids = query.ids[:size]
                found = self._find(ids, None)
                there = {document["_id"] for document in found}
                self.missing += tuple(id for id in ids if id not in there)
                self._rest = replace(query, ids=query.ids[size:]) if len(query.ids) > size else None
                documents = list(found)
        return documents

    def _find(self, ids: Sequence[ObjectId], fields: dict[str, int] | None) -> list[Document]:
        """Find items of the history by their ids, with no other indexed field: the server considers one index only."""
        filter = {"_id": {"$in": list(ids)}, "payload": {"$exists": True}}
        documents = find_few(
            self._context.broker, filter, [("_id", 1)], len(ids), projection=fields, target="history", lenient=True
        )
        kept = [each for each in documents if each.get("q") == self._context.name and each.get("processed")]
        return sorted(kept, key=_processing_order)


def _copy_all(task: Task, source: _Source, room: float, rate: float, progress: Progress) -> Replayed:
    """Copy chunk by chunk; while the server inserts one chunk, this process reads and makes the next.

    ``rate`` is the number of copies per second, at most; copies that exist already do not count.
    """
    result, found, free = Replayed(), list[Document | bytes](), -math.inf
    pending: Copies | None = None

    def finish(pending: Copies) -> None:
        nonlocal result, free
        more = pending.receive(task)
        free += more.pushed / rate
        result = replace(result + more, missing=source.missing)
        progress(result)

    while True:
        try:
            if not found and room > 0:
                found = source.read(room)
                room -= len(found)
            # Small enough to keep the rate within a second.
            size = max(1, int(min(len(found), rate / CHUNKS_PER_SECOND)))
            chunk, found = found[:size], found[size:]
            copies = copies_of(task, chunk) if chunk else None
        # The insert under way has to be answered and counted before the error goes to the caller.
        except Exception:
            if pending is not None:
                finish(pending)
            raise
        if pending is not None:
            finish(pending)
        if copies is None:
            return replace(result, missing=source.missing)
        if not task.dry_run:
            if (pause := free - time.monotonic()) > 0:
                sleep(pause)
            free = time.monotonic()
        copies.send(task)
        pending = copies


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

    def send(self, task: Task) -> None:
        """Push the copies (``insert`` of many, unordered) without waiting for the last of the inserts.

        Every insert is safe to send again: copies that had arrived are refused as duplicates.
        """
        if task.dry_run:
            there: list[Document] = []
            if self.ids:
                filter = {"_id": {"$in": [*map(ObjectId, self.ids)]}}
                there = perform(Command("find", {"filter": filter, "projection": {"_id": 1}}, target="history"))
            self.pushed = len(self.ids) - len(there)
            return
        for part in self.parts[:-1]:
            self.pushed += _insert(part)
        if self.parts and task.context.broker.serverless:
            self.pushed += _insert(self.parts[-1])
        elif self.parts:
            self.pending = begin(_insertion(self.parts[-1]))

    def receive(self, task: Task) -> Replayed:
        """Wait for the copies that were sent, and return the result."""
        if self.pending is not None:
            # The earlier inserts were waited for in ``send``; only the last one may still be under way.
            self.pushed += _insert(self.parts[-1], self.pending)
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


def find_originals(broker: BrokerContext, copies: Mapping[bytes, ObjectId], label: str) -> dict[bytes, dict[str, Any]]:
    """Return the fields that copies take over from their originals, by the ids of the copies (``find`` by ``_id``).

    Originals that do not exist are left out.
    """
    ensure_broker_ready(broker, write=False)
    wanted, found, now = list(set(copies.values())), {}, broker.clock.now()
    fields: dict[str, int] = dict.fromkeys(("q", "key", "headers", "attempts"), 1)
    for start in range(0, len(wanted), ORIGINALS_TOGETHER):
        ids = wanted[start : start + ORIGINALS_TOGETHER]
        filter = {"_id": {"$in": ids}, "q": {"$type": "string"}, "payload": {"$exists": True}}
        for document in find_few(broker, filter, [("_id", 1)], len(ids), projection=fields):
            headers = {"headers": document["headers"]} if isinstance(document.get("headers"), Mapping) else {}
            found[document["_id"]] = headers | mark_copy(Item(document, None, now, broker.namespace), label, now)
    return {copy: found[original] for copy, original in copies.items() if original in found}


def _insert(envelopes: list[RawBSONDocument], pending: Begun | None = None) -> int:
    """Insert new copies, or wait for an insert under way; return how many are new. Send again after a lost reply."""
    try:
        retry_once(_insertion(envelopes), pending)
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
