"""Replay: push copies of processed items into the same or another queue, each once."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import Duration, Id, count, duration, object_id, queue_name, read_list, text
from mongoq.model.arguments import priority as checked_priority
from mongoq.model.copies import COPY_MARK, Replayed
from mongoq.model.item import Document
from mongoq.protocol.base.bootstrap import ensure_broker_ready
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.flow import Flow, Wait
from mongoq.protocol.history.copying import Copies, Task, Transform, copies_of, receive, send
from mongoq.protocol.history.mistaken import log_no_history, refuse_mistake
from mongoq.protocol.history.pages import Chosen, PageRequest, Range, history_range, read_page, request_page
from mongoq.protocol.settle.move import Destination, destination
from mongoq.protocol.state.context import QueueContext

LABEL_BYTES = 100
"""Bytes of a label, at most."""
IDS_PER_FIND = 1000
"""Ids in one ``find``, at most."""
CLOCK_TOLERANCE = timedelta(seconds=1)
"""Tolerance for commits answered before the replay, which may be dated later than our now; clocks agree far better."""
CHUNKS_PER_SECOND = 4
"""Inserts per second when a rate limits the replay."""


Progress = Callable[[Replayed], object]
"""Function of the caller that receives the totals after each chunk."""


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
) -> Flow[Replayed]:
    """Copy processed items, page by page and chunk by chunk; all arguments are checked before anything is sent."""
    task = Task(
        context,
        hop_destination(context, hop, to) or destination(context, context),
        text(label, "label", LABEL_BYTES),
        duration(once, "once", zero=False),
        timedelta(0) if delay is None else duration(delay, "delay"),
        None if priority is None else checked_priority(priority),
        _function(transform, "transform"),
        _flag(dry_run, "dry_run"),
        hop,
    )
    _function(progress, "progress")
    room = math.inf if limit is None else count(limit, "limit")
    pace = _Pace(rate)
    wanted = history_range(context, since=since, until=until, where=where, state="processed", page=page)
    if after is not None and since is not None:
        raise ArgumentInvalid("after", "says where to begin, and so does since=; leave one of them out")
    if after is not None:
        wanted = wanted.behind(after, context.broker.encoding)
    checked_ids = None if ids is None else _check_ids(ids, since=since, until=until, after=after, where=where)
    yield from _prepare(task, to)
    if checked_ids is None:
        source: _InRange | Chosen = _InRange(context, wanted, as_stored=task.as_stored, trails=hop is not None)
    else:
        source = yield from _locate(context, checked_ids, page)
    result = yield from _copy_all(task, source, pace, room, progress or _ignore)
    if not result.found and checked_ids != []:
        yield from refuse_mistake(context, letters=False)
        yield from log_no_history(context)
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


def _ignore(_result: Replayed) -> None:
    pass


def _function(value: Any, argument: str) -> Any:
    if value is not None and (not callable(value) or inspect.iscoroutinefunction(value)):
        raise ArgumentInvalid(argument, f"a plain function, which is not awaited, not {value!r}")
    return value


def _flag(value: Any, argument: str) -> bool:
    if not isinstance(value, bool):
        raise ArgumentInvalid(argument, f"True or False, not {value!r}")
    return value


def _check_ids(ids: Any, **other_arguments: Any) -> list[ObjectId]:
    for name, value in other_arguments.items():
        if value is not None:
            raise ArgumentInvalid(name, "choose by ids=, or by since=, until=, after= and where=, not by both")
    return list(dict.fromkeys(object_id(id, f"ids[{n}]") for n, id in enumerate(read_list(ids, "ids"))))


def _prepare(task: Task, to: Any) -> Flow[None]:
    """Prepare the queues: a dry run writes nothing, not even the options of a handle."""
    broker = task.context.broker
    if task.dry_run:
        yield from ensure_broker_ready(broker, write=False)
        return
    yield from ensure_ready(task.context, fresh=False)
    if isinstance(to, QueueContext):
        yield from ensure_ready(QueueContext(broker, to.options, to.codec), fresh=False)


class _InRange:
    """Reads the items between two times, without the copies that a replay made into this queue.

    The end of the range is fixed at the beginning. The mark of its own copies excludes them, so the clocks need not
    agree. Items that are copied without decoding are read ``as_stored``: as bytes. With ``trails`` the items come with
    their trails.
    """

    missing: tuple[ObjectId, ...] = ()

    def __init__(self, context: QueueContext[Any], wanted: Range, *, as_stored: bool, trails: bool) -> None:
        self._context, self._as_stored, self._trails = context, as_stored, trails
        originals = {COPY_MARK: {"$ne": context.name}}
        where = {"$and": [wanted.where, originals]} if wanted.where else originals
        until = wanted.until or context.broker.clock.now() + CLOCK_TOLERANCE
        self._page = wanted.page
        self._rest: Range | None = replace(wanted, where=where, until=until)
        self._ahead: PageRequest | None = None

    def read(self, room: float) -> Flow[list[Document | bytes]]:
        """Read the next page, oldest first; it is empty at the end."""
        documents: list[Document | bytes] = []
        while not documents and (yield from self._begin(room)):
            assert self._ahead is not None
            documents, self._rest = yield from read_page(self._context.broker, self._ahead)
            self._ahead = None
        # The server reads the next page while the caller copies this one.
        yield from self._begin(room - len(documents))
        return documents

    def _begin(self, room: float) -> Flow[bool]:
        """Request the next page if there may be one and none is requested; return whether a request is under way."""
        if self._ahead is None and self._rest is not None and room > 0:
            wanted = replace(self._rest, page=int(min(self._page, room)))
            self._ahead = yield from request_page(self._context, wanted, as_stored=self._as_stored, trails=self._trails)
        return self._ahead is not None


def _locate(context: QueueContext[Any], ids: list[ObjectId], page: int) -> Flow[Chosen]:
    """Read which of the ids are in the history, and their order (``find`` by ``_id``)."""
    documents: list[Document] = []
    for start in range(0, len(ids), IDS_PER_FIND):
        documents += yield from _find_kept(context, ids[start : start + IDS_PER_FIND], {"q": 1, "processed": 1})
    order = [document["_id"] for document in sorted(documents, key=_processing_order)]
    there = set(order)
    return Chosen(partial(_find_kept, context), order, page, missing=[id for id in ids if id not in there])


def _find_kept(
    context: QueueContext[Any], ids: list[ObjectId], fields: dict[str, int] | None = None
) -> Flow[list[Document]]:
    """Find items of the history by their ids, with no other indexed field: the server considers one index only."""
    filter = {"_id": {"$in": ids}, "payload": {"$exists": True}}
    documents = yield from find_few(
        context.broker, filter, [("_id", 1)], len(ids), projection=fields, target="history", lenient=True
    )
    processed = [document for document in documents if document.get("q") == context.name and document.get("processed")]
    return sorted(processed, key=_processing_order)


def _processing_order(document: Document) -> tuple[Any, Any]:
    return document["processed"], document["_id"]


class _Pace:
    """Limits the copies per second; copies that exist already do not count."""

    def __init__(self, rate: Any) -> None:
        if rate is not None and (
            isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf
        ):
            raise ArgumentInvalid("rate", f"copies per second, a number above 0, not {rate!r}")
        self._rate = rate
        self._free = -math.inf

    def chunk(self, page: int) -> int:
        """Return the number of items for one insert, small enough to keep the rate within a second."""
        return page if self._rate is None else max(1, min(page, int(self._rate / CHUNKS_PER_SECOND)))

    def wait(self) -> Flow[None]:
        """Wait until the next chunk may be sent."""
        pause = self._free - time.monotonic()
        if pause > 0:
            yield from Wait(pause)
        self._free = time.monotonic()

    def record_copies(self, copies: int) -> None:
        if self._rate is not None:
            self._free += copies / self._rate


class _Chunks:
    """The documents to copy, in chunks of one insert."""

    def __init__(self, source: _InRange | Chosen, pace: _Pace, room: float) -> None:
        self._source, self._pace, self._room = source, pace, room
        self._found: list[Document | bytes] = []

    def read(self) -> Flow[list[Document | bytes]]:
        """Return the next chunk; it is empty at the end."""
        if not self._found and self._room > 0:
            self._found = yield from self._source.read(self._room)
            self._room -= len(self._found)
        size = self._pace.chunk(len(self._found))
        chunk, self._found = self._found[:size], self._found[size:]
        return chunk


def _copy_all(task: Task, source: _InRange | Chosen, pace: _Pace, room: float, progress: Progress) -> Flow[Replayed]:
    """Copy chunk by chunk; while the server inserts one chunk, this process reads and makes the next."""
    result, chunks = Replayed(), _Chunks(source, pace, room)
    pending: Copies | None = None

    def finish(pending: Copies) -> Flow[Replayed]:
        more = yield from receive(task, pending)
        pace.record_copies(more.pushed)
        so_far = replace(result + more, missing=source.missing)
        progress(so_far)
        return so_far

    while True:
        try:
            documents = yield from chunks.read()
            copies = copies_of(task, documents) if documents else None
        # The insert under way has to be answered and counted before the error goes to the caller.
        except Exception:
            if pending is not None:
                yield from finish(pending)
            raise
        if pending is not None:
            result = yield from finish(pending)
        if copies is None:
            return replace(result, missing=source.missing)
        if not task.dry_run:
            yield from pace.wait()
        yield from send(task, copies)
        pending = copies
