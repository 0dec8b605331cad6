"""Copying: push processed items again, in their order, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.errors import ArgumentInvalid, PayloadTooLarge
from mongoq.model.arguments import REASON_BYTES
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
from mongoq.protocol.base.retry import retry_once
from mongoq.protocol.flow import Begin, Begun, Command, Flow, own_error
from mongoq.protocol.history.pages import open_document
from mongoq.protocol.settle.move import Destination
from mongoq.protocol.state.context import BrokerContext, QueueContext

CHUNK_BYTES = 8 * 1024 * 1024
"""Bytes of one insert, at most."""
MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
"""Bytes of one document, at most; the server refuses larger ones."""
DUPLICATE_KEY_CODE = 11000
"""Code of the server's error for an id that exists already."""
STENCIL_FIELDS = frozenset(("priority", "attempts"))
"""Fields behind the payloads of most items that copies depend on. Only these can share a stencil."""

ORIGINALS_TOGETHER = 500
"""Originals of copies that one command reads."""

Transform = Callable[[Any, Item[Any]], Any]


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
    hop: str | None = None
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


def copies_of(task: Task, documents: list[Document | bytes]) -> Copies:
    """Make the copies of some documents; each may still be the bytes that the server sent."""
    broker = task.context.broker
    batch, now = _Batch(), broker.clock.now()
    for document in documents:
        batch.add(task, document, now)
    end = broker.clock.stamp() + task.delay
    whens = task.line.places([copy.id for copy in batch.copies], end)
    ids, copies = _fit_to_size(broker, batch, whens)
    last = open_document(broker, documents[-1])
    result = Replayed(
        found=len(documents),
        skipped=batch.skipped,
        refused=len(batch.refusals),
        refusals=tuple(batch.refusals[:MAX_REFUSALS]),
        position=(last["processed"], last["_id"]),
    )
    return Copies(ids, list(_parts(copies)), result, min(whens, default=end), batch.priorities)


def _fit_to_size(
    broker: BrokerContext, batch: _Batch, whens: list[datetime]
) -> tuple[list[bytes], list[RawBSONDocument]]:
    """Return the copies in the form to send, without copies too large for the server.

    Other programs may fill a document up to the server's limit; the marks of a copy then no longer fit.
    """
    ids, documents = [], []
    for copy, when in zip(batch.copies, whens, strict=True):
        document = copy.make(when)
        if len(document.raw) <= MAX_DOCUMENT_BYTES:
            ids.append(copy.id)
            documents.append(document)
        else:
            original = open_document(broker, copy.original)["_id"]
            batch.refusals.append((original, str(PayloadTooLarge("payload", len(document.raw), MAX_DOCUMENT_BYTES))))
    return ids, documents


def send(task: Task, copies: Copies) -> Flow[None]:
    """Push copies (``insert`` of many, unordered) without waiting for the last of the inserts.

    Every insert is safe to send again: copies that had arrived are refused as duplicates.
    """
    if task.dry_run:
        copies.pushed = yield from _count_absent(copies.ids)
        return
    for part in copies.parts[:-1]:
        copies.pushed += yield from _insert_copies(part)
    if copies.parts and task.context.broker.serverless:
        copies.pushed += yield from _insert_copies(copies.parts[-1])
    elif copies.parts:
        copies.pending = yield from Begin(_insert(copies.parts[-1]))


def receive(task: Task, copies: Copies) -> Flow[Replayed]:
    """Wait for copies that were sent, and return the result."""
    if copies.pending is not None:
        # The earlier inserts were waited for in ``send``; only the last one may still be under way.
        copies.pushed += yield from _insert_copies(copies.parts[-1], copies.pending)
    if not task.dry_run:
        task.context.broker.record_put(task.target.name, copies.due, *copies.priorities, number=copies.pushed)
    return replace(copies.result, pushed=copies.pushed, already=len(copies.ids) - copies.pushed)


class _Copy(NamedTuple):
    """A copy: its id, its original, and a function that makes it when its time is known."""

    id: bytes
    original: Document | bytes
    make: Callable[[datetime], RawBSONDocument]


@dataclass(slots=True)
class _Batch:
    """Results for some documents: copies, refusals, and a count of skipped items.

    Attributes:
        copies: copies to make, in the order of the documents.
        refusals: ids of items that cannot be copied, each with the reason.
        skipped: items that ``transform`` left out.
        stencils: stencils by the bytes behind the payloads, which documents of one stencil have in common.
        priorities: the priorities of the copies.
    """

    copies: list[_Copy] = field(default_factory=list)
    refusals: list[tuple[ObjectId, str]] = field(default_factory=list)
    skipped: int = 0
    stencils: dict[bytes, CopyStencil] = field(default_factory=dict)
    priorities: set[int] = field(default_factory=set)

    def add(self, task: Task, document: Document | bytes, now: datetime) -> None:
        """Prepare the copy of a document, or note why there is none."""
        # The fast way: a document with a known tail is copied as bytes, without decoding it.
        cut = task.cutter.cut(document) if type(document) is bytes and task.hop is None else None
        if cut is not None and cut[2] in self.stencils:
            id, payload, rest, processed = cut
            copy = task.ids.id(id, processed)
            make = partial(self.stencils[rest].copy, copy, payload, id)
            self.copies.append(_Copy(copy, document, make))
            return
        document = open_document(task.context.broker, document)
        if isinstance(document, UnreadableDocument):
            self.refusals.append((document["_id"], shorten(document.problem, REASON_BYTES)))
            return
        item = task.context.raw_item(document, now)
        try:
            payload = _payload(task, item)
            if payload is SKIP:
                self.skipped += 1
                return
            envelope = _envelope(task, document, item, payload, now)
        except _Unfit as unfit:
            self.refusals.append((item.id, shorten(str(unfit.__cause__), REASON_BYTES)))
            return
        self.priorities.add(envelope["priority"])
        encoding = task.context.broker.encoding
        if cut is not None and fields_of(cut[2]) == STENCIL_FIELDS:
            self.stencils[cut[2]] = CopyStencil(encoding, envelope)
        self.copies.append(
            _Copy(envelope["_id"].binary, document, lambda when: encoding.raw({**envelope, "when": when}))
        )


class _Unfit(Exception):
    """Raised for an item that cannot be copied; errors of the caller's own function are not turned into it."""


@contextmanager
def _fitting() -> Iterator[None]:
    try:
        yield
    except ArgumentInvalid as invalid:
        raise _Unfit from invalid


def _payload(task: Task, item: Item[Any]) -> Any:
    """Return the payload of the copy, or ``SKIP``; without ``transform`` it is the stored payload."""
    if task.hop is not None:
        with _fitting():
            item = item.with_payload(payload_at(item.stored("trail"), task.hop))
    if task.as_stored:
        return item.payload
    if task.transform is None:
        with _fitting():
            # Checks that the target's type can read it; the copy still gets the stored form.
            task.target.codec.load(item.payload)
        return item.payload
    with _fitting():
        # The payload at a hop belongs to another queue, so this queue's type does not apply to it.
        typed = task.context.decode_payload(item) if task.hop is None else item
    payload = task.transform(typed.payload, typed)
    if payload is None:
        hint = "return the payload, or mongoq.SKIP to leave the item out"
        raise ArgumentInvalid("transform", f"returned None for item {item.id}; {hint}")
    if payload is SKIP:
        return SKIP
    with _fitting():
        return task.target.codec.encode(payload)


def _envelope(task: Task, document: Document, item: Item[Any], payload: Any, now: datetime) -> dict[str, Any]:
    """Return the envelope of a copy: new except for payload, priority and headers, with an ``origin``.

    The key is not used again, because a newer item may have it by now.
    """
    priority = task.priority
    if priority is None:
        with _fitting():
            priority = checked_priority(item.priority)
    id, once, headers = task.ids.of(document), now + task.once, item.headers or None
    envelope = new_envelope(task.target.name, payload, id=id, when=now, priority=priority, headers=headers, once=once)
    return envelope | mark_copy(item, task.label, now)


def mark_copy(item: Item[Any], label: str | None, now: datetime) -> dict[str, Any]:
    """Return the fields by which a copy shows its original: no replay of the original's queue copies it."""
    reason = f"replayed: {label}" if label else "replayed"
    return {"origin": origin_document(item, reason=reason, attempts=item.attempts, at=now), COPY_MARK: item.queue}


def find_originals(
    broker: BrokerContext, copies: Mapping[bytes, ObjectId], label: str
) -> Flow[dict[bytes, dict[str, Any]]]:
    """Return the fields that copies take over from their originals, by the ids of the copies (``find`` by ``_id``).

    Originals that do not exist are left out.
    """
    yield from ensure_broker_ready(broker, write=False)
    wanted, found, now = list(set(copies.values())), {}, broker.clock.now()
    fields: dict[str, int] = dict.fromkeys(("q", "key", "headers", "attempts"), 1)
    for start in range(0, len(wanted), ORIGINALS_TOGETHER):
        ids = wanted[start : start + ORIGINALS_TOGETHER]
        filter = {"_id": {"$in": ids}, "q": {"$type": "string"}, "payload": {"$exists": True}}
        for document in (yield from find_few(broker, filter, [("_id", 1)], len(ids), projection=fields)):
            headers = {"headers": document["headers"]} if isinstance(document.get("headers"), Mapping) else {}
            found[document["_id"]] = headers | mark_copy(Item(document, None, now, broker.namespace), label, now)
    return {copy: found[original] for copy, original in copies.items() if original in found}


def _count_absent(ids: list[bytes]) -> Flow[int]:
    """Count the ids that are not in the collection (``find`` by ``_id``)."""
    if not ids:
        return 0
    arguments = {"filter": {"_id": {"$in": [*map(ObjectId, ids)]}}, "projection": {"_id": 1}}
    there: list[Document] = yield from Command("find", arguments, target="history")
    return len(ids) - len(there)


def _parts(envelopes: list[RawBSONDocument]) -> Iterator[list[RawBSONDocument]]:
    """Divide envelopes into inserts that are bounded in bytes."""
    part: list[RawBSONDocument] = []
    filled = 0
    for envelope in envelopes:
        length = len(envelope.raw)
        if part and filled + length > CHUNK_BYTES:
            yield part
            part, filled = [], 0
        part.append(envelope)
        filled += length
    if part:
        yield part


def _insert(envelopes: list[RawBSONDocument]) -> Command[Any]:
    return Command("insert_many", {"documents": envelopes, "ordered": False})


def _insert_copies(envelopes: list[RawBSONDocument], pending: Begun | None = None) -> Flow[int]:
    """Insert new copies, or wait for an insert under way; return how many are new. Send again after a lost reply."""
    try:
        yield from retry_once(_insert(envelopes), pending)
    except Exception as error:
        # A copy has the same id each time it is made, so a duplicate is a copy that was pushed before.
        duplicates = _duplicates(error)
        if duplicates is None:
            raise
        return len(envelopes) - duplicates
    return len(envelopes)


def _duplicates(error: Exception) -> int | None:
    """Return how many inserts failed because the copies exist already; ``None`` when any failed for another reason."""
    details = getattr(own_error(error), "details", None)
    if not isinstance(details, Mapping):
        return None
    failures = details.get("writeErrors")
    if (
        not failures
        or details.get("writeConcernErrors")
        or any(failure["code"] != DUPLICATE_KEY_CODE for failure in failures)
    ):
        return None
    return len(failures)
