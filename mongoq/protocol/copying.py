"""Copying: some processed items pushed again, in their order, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import priority as checked_priority
from mongoq.model.copies import Line, copy_envelope, copy_id
from mongoq.model.envelope import REASON_BYTES, shorten
from mongoq.model.item import Document, Item
from mongoq.model.replayed import REFUSALS, SKIP, Replayed
from mongoq.protocol.context import QueueContext
from mongoq.protocol.move import Destination
from mongoq.protocol.request import Command, Flow, Interruption, insisted

__all__ = ["Task", "Transform", "copy_all"]

CHUNK_BYTES = 8 * 1024 * 1024
DUPLICATE_KEY = 11000

Transform = Callable[[Any, Item[Any]], Any]


@dataclass(frozen=True, slots=True)
class Task:
    """What to make of the items of a history, checked."""

    context: QueueContext[Any]
    target: Destination
    label: str
    once: timedelta
    delay: timedelta
    priority: int | None
    transform: Transform | None
    dry_run: bool
    line: Line = field(default_factory=Line)

    @property
    def as_stored(self) -> bool:
        """Whether payloads are copied unseen."""
        return self.transform is None and self.target.codec.untyped


def copy_all(task: Task, documents: list[Document]) -> Flow[Replayed]:
    """Push the copies of some documents, in their order (``insert`` of many, unordered)."""
    batch, now = _Batch(), task.context.broker.clock.now()
    for document in documents:
        batch.add(task, document, now)
    ids = [envelope["_id"] for envelope in batch.envelopes]
    end = task.context.broker.clock.stamp() + task.delay
    for envelope, when in zip(batch.envelopes, task.line.places(ids, end), strict=True):
        envelope["when"] = when
    pushed = yield from (_absent(ids) if task.dry_run else _pushed(task, batch.envelopes))
    last = documents[-1]
    return Replayed(
        found=len(documents),
        pushed=pushed,
        already=len(ids) - pushed,
        skipped=batch.skipped,
        refused=len(batch.refusals),
        refusals=tuple(batch.refusals[:REFUSALS]),
        position=(last["processed"], last["_id"]),
    )


@dataclass(slots=True)
class _Batch:
    """What becomes of some documents."""

    envelopes: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[tuple[ObjectId, str]] = field(default_factory=list)
    skipped: int = 0

    def add(self, task: Task, document: Document, now: datetime) -> None:
        """Make the copy of a document, or note why there is none."""
        item = task.context.raw_item(document, now)
        try:
            payload = _payload(task, item)
            if payload is SKIP:
                self.skipped += 1
            else:
                self.envelopes.append(_envelope(task, document, item, payload, now))
        except _Unfit as unfit:
            self.refusals.append((item.id, shorten(str(unfit.__cause__), REASON_BYTES)))


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
    if task.as_stored:
        return item.payload
    if task.transform is None:
        with _fitting():
            task.target.codec.load(item.payload)
        return item.payload
    with _fitting():
        typed = task.context.decoded(item)
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
        id=copy_id(document, task.target.name, task.label),
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


def _absent(ids: list[ObjectId]) -> Flow[int]:
    """Count the ids that are not there (``find`` by ``_id``)."""
    if not ids:
        return 0
    arguments = {"filter": {"_id": {"$in": ids}}, "projection": {"_id": 1}}
    there: list[Document] = yield from Command("find", arguments, target="history")
    return len(ids) - len(there)


def _pushed(task: Task, envelopes: list[dict[str, Any]]) -> Flow[int]:
    pushed = 0
    for part in _parts([task.context.broker.encoding.raw(envelope) for envelope in envelopes]):
        pushed += yield from _inserted(part)
    task.context.broker.counters.add(task.target.name, "put", pushed)
    return pushed


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


def _inserted(envelopes: list[RawBSONDocument]) -> Flow[int]:
    """Insert what is not there yet, and return how many that was.

    Safe to send again when the reply was lost; what had arrived is then there already.
    """
    command: Command[Any] = Command("insert_many", {"documents": envelopes, "ordered": False})
    try:
        yield from insisted(command)
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
