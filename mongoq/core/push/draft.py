"""Drafts of pushes: their options, checked, and the envelopes that are made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.core.command import with_place
from mongoq.core.state.context import QueueContext
from mongoq.data.arguments import PRIORITIES, Duration, object_id, read_list
from mongoq.data.arguments import expires as checked_expires
from mongoq.data.arguments import priority as checked_priority
from mongoq.data.clock import Clock, milliseconds, time_of
from mongoq.data.envelope import Document, Stencil, fresh_envelope, new_envelope
from mongoq.data.push_options import KEYED, Keyed, check_due, check_headers, due_time, last_start
from mongoq.data.sequence import check_sequence
from mongoq.errors import ArgumentInvalid

T = TypeVar("T")

Push = tuple[bytes, bytes, int]
"""One push: its id in 12 bytes, its payload as ``{"payload": payload}`` in BSON, and the index of its draft.

It holds only bytes and numbers, since the interpreter's garbage collector skips tuples of them.
"""


@dataclass(slots=True, eq=False)
class Draft:
    """Options of pushes besides their payloads, checked; pushes with the same options share one draft.

    Attributes:
        delay: how long the items wait; ``None`` when they do not, or have a ``when``.
        when: the time from which on they are eligible, or ``None``.
        priority: their priority.
        headers: their headers, in the form to send.
        keyed: the key, and what to do while an item of that key is live.
        expires: how long they may wait for their start, or until when; ``None`` for ever.
        sequence: the sequence that they enter.
        at: the time from which on they are eligible, in milliseconds since 1970; set by ``stamp``.
        start_by: the time by which they must be started; set by ``stamp``.
        once: the time until which ids given by the producer are remembered; set by ``stamp``.
    """

    delay: Duration | None = None
    when: datetime | None = None
    priority: int = 0
    headers: Any = None
    keyed: Keyed | None = None
    expires: timedelta | datetime | None = None
    sequence: str | None = None
    at: int = field(init=False, default=0)
    start_by: datetime | None = field(init=False, default=None)
    once: datetime | None = field(init=False, default=None)
    _stencil: Stencil | None = field(init=False, default=None)

    def stamp(self, clock: Clock, remember: timedelta | None) -> None:
        """Set the times, and so the place before all later pushes; ``remember`` is ``None`` without given ids."""
        undelayed = self.delay is None and self.when is None
        self.at = clock.now_milliseconds() if undelayed else milliseconds(due_time(clock, self.delay, self.when))
        if self.expires is not None:
            self.start_by = last_start(clock, self.expires, self.delay, self.when)
        if remember is not None:
            self.once = clock.now() + remember

    def enter(self, sequence: Any) -> None:
        """Set the sequence that the item enters."""
        self.sequence = check_sequence(sequence)
        if self.keyed is not None:
            raise ArgumentInvalid("sequence", KEYED)

    def size(self, wrapped: bytes) -> int:
        """Return the bytes that an item adds to a command, approximately."""
        return len(wrapped) if self.headers is None else len(wrapped) + len(self.headers.raw)

    def encode(self, context: QueueContext[Any], id: ObjectId, wrapped: bytes) -> RawBSONDocument:
        """Return the envelope of a single item in the form to send."""
        if self.headers is None and self.once is None and self.start_by is None:
            return fresh_envelope(context.name, wrapped, id=id, at=self.at, priority=self.priority)
        return self.stencil(context).envelope(id.binary, wrapped)

    def stencil(self, context: QueueContext[Any]) -> Stencil:
        """Return the encoded part of the envelopes, made at first use."""
        if self._stencil is None:
            self._stencil = Stencil(context.broker.encoding, self.document(context, ObjectId(), None))
        return self._stencil

    def document(self, context: QueueContext[Any], id: ObjectId, payload: Any) -> Document:
        """Return the envelope of an item as a document with readable fields."""
        return new_envelope(
            context.name,
            payload,
            id=id,
            when=time_of(self.at),
            priority=self.priority,
            headers=self.headers,
            once=self.once,
            start_by=self.start_by,
        )


@dataclass(slots=True, eq=False)
class Drafts:
    """Drafts of pushes to one queue, by the indexes in the pushes.

    Attributes:
        context: the queue.
        each: the drafts.
        id_given: the ids were given by the producer, so they may exist already.
        joined: the pushes belong to a caller's transaction.
        originals: further fields of the pushes that are copies, by their ids; headers of a draft go before theirs.
    """

    context: QueueContext[Any]
    each: Sequence[Draft]
    id_given: bool
    joined: bool = False
    originals: Mapping[bytes, Mapping[str, Any]] = field(default_factory=dict)

    def encode(self, push: Push) -> RawBSONDocument:
        """Return the envelope of a push without a key, in the form to send."""
        id, wrapped, place = push
        if id in self.originals:
            return Stencil(self.context.broker.encoding, self.document(push, None)).envelope(id, wrapped)
        return self.each[place].stencil(self.context).envelope(id, wrapped)

    def document(self, push: Push, payload: Any = ...) -> Document:
        """Return the envelope of a push as a document, with another payload if given."""
        id, wrapped, place = push
        if payload is ...:
            payload = self.context.broker.encoding.unwrap("payload", wrapped)
        envelope = self.each[place].document(self.context, ObjectId(id), payload)
        if id not in self.originals:
            return envelope
        original = dict(self.originals[id])
        if self.each[place].headers is not None:
            original.pop("headers", None)
        return {**envelope, **original}

    def size(self, push: Push) -> int:
        """Return the bytes that a push adds to a command, approximately."""
        return self.each[push[2]].size(push[1])

    def record(self, pushes: Iterable[Push]) -> None:
        """Record the new items, draft by draft."""
        for place, number in Counter(place for _, _, place in pushes).items():
            self.context.record_put(self.each[place].priority, self.each[place].at, number=number)


def make_draft(
    context: QueueContext[Any],
    delay: Duration | None,
    when: datetime | None,
    priority: Any,
    headers: Mapping[str, Any] | None,
) -> Draft:
    """Return the draft of pushes with these options, checked."""
    if delay is not None or when is not None:
        check_due(delay, when)
    if type(priority) is not int or priority not in PRIORITIES:
        priority = checked_priority(priority)
    encoded = None if headers is None else check_headers(headers, context.broker.encoding)
    return Draft(delay, when, priority, encoded)


def encode_payloads(context: QueueContext[Any], payloads: Iterable[Any]) -> list[bytes]:
    """Check and encode each payload, as ``{"payload": payload}``."""
    listed = read_list(payloads, "payloads")
    with suppress(ArgumentInvalid):
        return context.codec.wrap_many(listed)
    values = []
    for place, payload in enumerate(listed):  # one payload is refused: find out which, for the error
        try:
            values.append(context.codec.wrap(payload))
        except ArgumentInvalid as error:
            raise with_place(error, f"payloads[{place}]", "payload") from error
    return values


def check_ids(ids: Iterable[Any], number: int) -> list[ObjectId]:
    """Return the ids of so many items, all of them different."""
    object_ids = _check_each(ids, "ids", object_id, number, f"ids for {number} payloads; give one for each")
    if len({id.binary for id in object_ids}) != number:
        raise ArgumentInvalid("ids", "the same id is given twice; one item has one id")
    return object_ids


def check_sequences(sequence: Any, sequences: Any, number: int) -> list[str | None]:
    """Return the sequence of each item, or a list with the one of all."""
    if sequences is None:
        return [None if sequence is None else check_sequence(sequence)]
    if sequence is not None:
        raise ArgumentInvalid("sequences", "give either sequence= for all items or sequences= with one for each")
    problem = f"sequences for {number} payloads; give one or None for each"
    return _check_each(sequences, "sequences", _none_or(check_sequence), number, problem)


def check_expiries(expires: Any, number: int) -> list[timedelta | datetime | None]:
    """Return the time that each item has for its start, or a list with the one of all."""
    if expires is None or isinstance(expires, timedelta | int | float | datetime | str | bytes | Mapping):
        return [None if expires is None else checked_expires(expires)]
    problem = f"times for {number} payloads; give one for each, or one for all"
    return _check_each(expires, "expires", _none_or(checked_expires), number, problem)


def _check_each(values: Any, name: str, check: Callable[[Any, str], T], number: int, problem: str) -> list[T]:
    checked = [check(value, f"{name}[{place}]") for place, value in enumerate(read_list(values, name))]
    if len(checked) != number:
        raise ArgumentInvalid(name, f"{len(checked)} {problem}")
    return checked


def _none_or(check: Callable[[Any, str], T]) -> Callable[[Any, str], T | None]:
    return lambda value, argument: None if value is None else check(value, argument)
