"""Copying: some processed items pushed again, in their order, each once."""

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
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.model.envelope import shorten
from mongoq.model.item import Document, Item
from mongoq.model.raw.raw_document import Cutter, fields_of
from mongoq.model.replay_order import CopyIds, CopyStencil, ReplayOrder, copy_envelope
from mongoq.model.replay_result import REFUSALS, SKIP, Replayed
from mongoq.protocol.flow.commands import Begin, Begun, Command, Flow, Interruption, ReplyLost
from mongoq.protocol.history.pages import opened
from mongoq.protocol.history.replay_from_hop import payload_at
from mongoq.protocol.settle.move import Destination
from mongoq.protocol.state.context import BrokerContext, QueueContext

__all__ = ["Copies", "Sent", "Task", "Transform", "copies_of", "received", "send"]

CHUNK_BYTES = 8 * 1024 * 1024
LARGEST = 16 * 1024 * 1024
DUPLICATE_KEY = 11000
PLAIN = frozenset(("priority", "attempts"))
"""What stands behind the payloads of most items, as far as copies are made of it."""

Transform = Callable[[Any, Item[Any]], Any]


@dataclass(frozen=True, slots=True)
class Task:
    """What to make of the items of a history, checked; with a ``hop``, of what they were when they left that queue."""

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
        """Whether payloads are copied unseen."""
        return self.transform is None and self.target.codec.untyped


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of some documents, in their order.

    Attributes:
        ids: theirs.
        parts: the inserts that push them, bounded in bytes.
        told: what is known before any of them is pushed.
    """

    ids: list[bytes]
    parts: list[list[RawBSONDocument]]
    told: Replayed


@dataclass(frozen=True, slots=True)
class Sent:
    """Copies whose last insert is under way.

    Attributes:
        copies: the copies.
        pushed: how many were pushed before it.
        begun: that insert; ``None`` when there is nothing to wait for.
    """

    copies: Copies
    pushed: int
    begun: Begun | None = None


def copies_of(task: Task, documents: list[Document | bytes]) -> Copies:
    """Make the copies of some documents, which may be the bytes that they came as."""
    broker = task.context.broker
    batch, now = _Batch(), broker.clock.now()
    for document in documents:
        batch.add(task, document, now)
    end = broker.clock.stamp() + task.delay
    ids, copies = _sized(broker, batch, task.line.places([copy.id for copy in batch.copies], end))
    last = opened(broker, documents[-1])
    told = Replayed(
        found=len(documents),
        skipped=batch.skipped,
        refused=len(batch.refusals),
        refusals=tuple(batch.refusals[:REFUSALS]),
        position=(last["processed"], last["_id"]),
    )
    return Copies(ids, list(_parts(copies)), told)


def _sized(broker: BrokerContext, batch: _Batch, whens: list[datetime]) -> tuple[list[bytes], list[RawBSONDocument]]:
    """Return the copies as they are sent, without those that no server takes: other programs may fill a document."""
    ids, sent = [], []
    for copy, when in zip(batch.copies, whens, strict=True):
        made = copy.make(when)
        if len(made.raw) <= LARGEST:
            ids.append(copy.id)
            sent.append(made)
        else:
            original = opened(broker, copy.original)["_id"]
            batch.refusals.append((original, str(PayloadTooLarge("payload", len(made.raw), LARGEST))))
    return ids, sent


def send(task: Task, copies: Copies) -> Flow[Sent]:
    """Push copies (``insert`` of many, unordered), and do not wait for the last of the inserts.

    All are safe to send again: what had arrived is there already.
    """
    if task.dry_run:
        return Sent(copies, (yield from _absent(copies.ids)))
    if not copies.parts:
        return Sent(copies, 0)
    *first, last = copies.parts
    pushed = 0
    for part in first:
        pushed += yield from _inserted(part)
    if task.context.broker.serverless:
        return Sent(copies, pushed + (yield from _inserted(last)))
    return Sent(copies, pushed, (yield from Begin(_insert(last))))


def received(task: Task, sent: Sent) -> Flow[Replayed]:
    """Wait for copies that were sent, and tell what became of them."""
    pushed = sent.pushed
    if sent.begun is not None:
        pushed += yield from _inserted(sent.copies.parts[-1], sent.begun)
    if not task.dry_run:
        task.context.broker.counters.add(task.target.name, "put", pushed)
        if pushed:
            task.context.broker.tell(task.target.name, number=pushed)
    return replace(sent.copies.told, pushed=pushed, already=len(sent.copies.ids) - pushed)


class _Copy(NamedTuple):
    """A copy: its id, what it is copied from, and what makes it when its time is known."""

    id: bytes
    original: Document | bytes
    make: Callable[[datetime], RawBSONDocument]


@dataclass(slots=True)
class _Batch:
    """What becomes of some documents.

    Attributes:
        stencils: by what those have in common, behind their payloads, that a stencil serves.
    """

    copies: list[_Copy] = field(default_factory=list)
    refusals: list[tuple[ObjectId, str]] = field(default_factory=list)
    skipped: int = 0
    stencils: dict[bytes, CopyStencil] = field(default_factory=dict)

    def add(self, task: Task, document: Document | bytes, now: datetime) -> None:
        """Prepare the copy of a document, or note why there is none."""
        cut = task.cutter.cut(document) if type(document) is bytes and task.hop is None else None
        if cut is not None and cut[2] in self.stencils:
            id, payload, rest, processed = cut
            copy = task.ids.id(id, processed)
            make = partial(self.stencils[rest].copy, copy, payload, id)
            self.copies.append(_Copy(copy, document, make))
            return
        document = opened(task.context.broker, document)
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
        encoding = task.context.broker.encoding
        if cut is not None and fields_of(cut[2]) == PLAIN:
            self.stencils[cut[2]] = CopyStencil(encoding, envelope)
        self.copies.append(
            _Copy(envelope["_id"].binary, document, lambda when: encoding.raw({**envelope, "when": when}))
        )


class _Unfit(Exception):
    """An item that cannot be copied; errors of the caller's own function are something else."""


@contextmanager
def _fitting() -> Iterator[None]:
    try:
        yield
    except ArgumentInvalid as invalid:
        raise _Unfit from invalid


def _payload(task: Task, item: Item[Any]) -> Any:
    """Return the payload of the copy, or ``SKIP``; as it is stored unless it is transformed."""
    if task.hop is not None:
        with _fitting():
            item = item.with_payload(payload_at(item.stored("trail"), task.hop))
    if task.as_stored:
        return item.payload
    if task.transform is None:
        with _fitting():
            task.target.codec.load(item.payload)
        return item.payload
    with _fitting():
        typed = task.context.decoded(item) if task.hop is None else item  # which is of another queue
    payload = task.transform(typed.payload, typed)
    if payload is None:
        hint = "return the payload, or mongoq.SKIP to leave the item out"
        raise ArgumentInvalid("transform", f"returned None for item {item.id}; {hint}")
    if payload is SKIP:
        return SKIP
    with _fitting():
        return task.target.codec.encode(payload)


def _envelope(task: Task, document: Document, item: Item[Any], payload: Any, now: datetime) -> dict[str, Any]:
    return copy_envelope(
        item,
        payload,
        queue=task.target.name,
        id=task.ids.of(document),
        when=now,
        priority=_priority(item) if task.priority is None else task.priority,
        once=now + task.once,
        label=task.label,
        at=now,
    )


def _priority(item: Item[Any]) -> int:
    try:
        return checked_priority(item.priority)
    except ArgumentInvalid as invalid:
        raise _Unfit from invalid


def _absent(ids: list[bytes]) -> Flow[int]:
    """Count the ids that are not there (``find`` by ``_id``)."""
    if not ids:
        return 0
    arguments = {"filter": {"_id": {"$in": [*map(ObjectId, ids)]}}, "projection": {"_id": 1}}
    there: list[Document] = yield from Command("find", arguments, target="history")
    return len(ids) - len(there)


def _parts(envelopes: list[RawBSONDocument]) -> Iterator[list[RawBSONDocument]]:
    """Divide into inserts that are bounded in bytes."""
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


def _inserted(envelopes: list[RawBSONDocument], begun: Begun | None = None) -> Flow[int]:
    """Insert what is not there yet, or wait for it, and return how many that was; after a lost reply send it again."""
    command = _insert(envelopes)
    try:
        try:
            yield from begun or command
        except ReplyLost:
            yield from command
    except Exception as error:
        duplicates = _duplicates(error)
        if duplicates is None:
            raise
        return len(envelopes) - duplicates
    return len(envelopes)


def _duplicates(error: Exception) -> int | None:
    """Return how many inserts failed because they had happened before; ``None`` when any failed for another reason."""
    cause = error.cause if isinstance(error, Interruption) else error
    details = getattr(cause, "details", None)
    if not isinstance(details, Mapping):
        return None
    failures = details.get("writeErrors")
    if not failures or details.get("writeConcernErrors") or any(one["code"] != DUPLICATE_KEY for one in failures):
        return None
    return len(failures)
