"""Pushes: checked into drafts, and inserted alone, with those of other callers, or in chunks.

``push``, ``push_many`` and ``push_each`` check their arguments. ``push_drafts`` takes the drafts to a queue, to its
sequences, or to the queues of a topic. A lone push of a plain item is one ``insert``, which callers may share.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.errors import ArgumentInvalid, BatchIncomplete, DuplicateItem, PayloadInvalid
from mongoq.model.arguments import Duration, Expires, Id, duration, moment, object_id, read_list
from mongoq.model.arguments import expires as checked_expires
from mongoq.model.arguments import priority as checked_priority
from mongoq.model.clock import Clock, milliseconds, time_of
from mongoq.model.encoding.codec import HEADERS_LIMIT, Encoding
from mongoq.model.encoding.ids import new_id, new_ids
from mongoq.model.envelope import Document, Stencil, fresh_envelope, is_same_push, new_envelope
from mongoq.model.sequence import check_sequence, topic_problem
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.retry import retry_once, retry_until_reply
from mongoq.protocol.base.topics import ensure_ready_to_push
from mongoq.protocol.base.transaction import ensure_possible
from mongoq.protocol.command import (
    MAX_COMMAND_BYTES,
    Command,
    Duplicate,
    PartlyRefused,
    ReplyLost,
    Shared,
    chunks,
    copies,
    finish,
    number_matched,
    own_error,
    with_place,
)
from mongoq.protocol.perform import perform, share
from mongoq.protocol.push.insert import (
    KEYED,
    Keyed,
    OnDuplicate,
    check_keyed,
    find_pushed,
    is_new,
    push_keyed,
)
from mongoq.protocol.push.publish import (
    MAX_COPIES,
    MAX_TRANSACTION_BYTES,
    Copy,
    insert_joined,
    publish,
    publish_keyed,
    push_in_order,
)
from mongoq.protocol.state.context import QueueContext

logger = logging.getLogger("mongoq.push")

MAX_TRANSACTION_PUSHES = 1_000
"""Items pushed into sequences in one transaction, at most."""
DEFAULT_REMEMBER = timedelta(days=7)
"""How long an id given by the producer is remembered by default."""

SEQUENCE = attrgetter("sequence")

Failures = dict[ObjectId, Exception]

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
            due = time_of(self.at) if is_put_off(self.delay, self.when) else None
            self.start_by = last_start(clock, self.expires, due)
        if remember is not None:
            self.once = clock.now() + remember

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


def due_time(clock: Clock, delay: Duration | None, when: datetime | None) -> datetime:
    """Return the time from which on an item is eligible: now, after ``delay``, or at ``when``."""
    if when is not None:
        return moment(when, "when")
    if delay is None:
        return clock.stamp()
    length = duration(delay, "delay")
    try:
        return clock.now() + length if length else clock.stamp()
    except OverflowError:  # the caller's own clock may show any year
        raise ArgumentInvalid("delay", f"ends beyond the year 9999: {delay!r}") from None


def last_start(clock: Clock, expires: timedelta | datetime, due: datetime | None) -> datetime:
    """Return the time by which an item must be started; refuse one before a delayed item is ``due``.

    A time that is over is no error without a delay: then the first claim that meets the item settles it.
    """
    try:
        start_by = expires if isinstance(expires, datetime) else clock.now() + expires
    except OverflowError:  # the caller's own clock may show any year
        raise ArgumentInvalid("expires", f"ends beyond the year 9999: {expires!r}") from None
    if due is not None and due >= start_by:
        problem = f"the item is due at {due:%Y-%m-%d %H:%M:%S} UTC and must start before {start_by:%Y-%m-%d %H:%M:%S}"
        raise ArgumentInvalid("expires", f"{problem} UTC, so it could never start; give a longer time than the delay")
    return start_by


def check_expires(
    clock: Clock, expires: Any, delay: Duration | None, when: datetime | None
) -> timedelta | datetime | None:
    """Return how long an item that is pushed later may wait for its start, or until when, checked.

    ``delay`` and ``when`` were checked before. An item that could never start is refused, as far as that is known now.
    """
    if expires is None:
        return None
    lasts = checked_expires(expires)
    last_start(clock, lasts, due_time(clock, delay, when) if is_put_off(delay, when) else None)
    return lasts


def is_put_off(delay: Duration | None, when: datetime | None) -> bool:
    """Return whether an item waits before it is due; a delay of zero is none."""
    return when is not None or bool(delay)


def remember_time(once: Duration | None, identified: bool) -> timedelta:
    """Return how long ids are remembered; ``once`` needs a given id, since only its item is pushed again."""
    if once is None:
        return DEFAULT_REMEMBER
    if not identified:
        raise ArgumentInvalid("once", "says how long a given id is remembered; give the id as well")
    return duration(once, "once", zero=False)


def check_due(delay: Duration | None, when: datetime | None) -> None:
    """Refuse ``delay`` and ``when`` together, and either one when it is no valid time."""
    if delay is not None and when is not None:
        raise ArgumentInvalid("when", "give either delay= or when=, not both")
    if delay is not None:
        duration(delay, "delay")
    if when is not None:
        moment(when, "when")


def check_headers(headers: Mapping[str, Any] | None, encoding: Encoding) -> Any:
    """Return the headers in the form to send; raise ``PayloadInvalid`` or ``PayloadTooLarge``."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise PayloadInvalid("headers", f"a document, not {type(headers).__name__}")
    return encoding.encode("headers", headers, limit=HEADERS_LIMIT)


async def _make_ready(
    context: QueueContext[Any], drafts: Sequence[Draft], remember: timedelta | None, *, joined: bool
) -> None:
    """Make the queue ready to be pushed to, and set the times of the drafts.

    Raises:
        TransactionsUnavailable: an item has a sequence, and the server is no replica set.
        ArgumentInvalid: an item has a sequence, and the queue is a topic.
    """
    is_ordered = any(map(SEQUENCE, drafts))
    if is_ordered and not joined:
        await ensure_possible(context.broker)
    await (ensure_ready(context, fresh=False) if joined else ensure_ready_to_push(context))
    if is_ordered and context.broker.topics.bound.get(context.name):
        raise ArgumentInvalid("sequence", topic_problem(context.name))
    if remember is not None:
        context.state.expect_remembered(remember)
    for draft in drafts:
        draft.stamp(context.broker.clock, remember)


async def push(
    context: QueueContext[Any],
    payload: Any,
    *,
    delay: Duration | None,
    when: datetime | None,
    priority: int,
    headers: Mapping[str, Any] | None,
    id: Id | None,
    once: Duration | None,
    key: str | None = None,
    on_duplicate: OnDuplicate = "keep",
    sequence: str | None = None,
    expires: Expires | None = None,
    session: Any = None,
) -> ObjectId:
    """Insert one item, or a copy of it for each queue bound to this one, and return its id.

    The same ``id`` again, while it is remembered, inserts nothing. ``session`` is that of a caller's transaction; the
    bindings were read before that transaction's push.
    """
    draft = Draft(delay, when)
    if key is not None or on_duplicate != "keep":
        draft.keyed = check_keyed(key, on_duplicate)
    if sequence is not None:
        draft.sequence = check_sequence(sequence)
        if draft.keyed is not None:
            raise ArgumentInvalid("sequence", KEYED)
    wrapped = context.codec.wrap(payload)
    if headers is not None:
        draft.headers = check_headers(headers, context.broker.encoding)
    remember = None if id is None and once is None else remember_time(once, id is not None)
    item_id = None if id is None else object_id(id)
    if delay is not None or when is not None:
        check_due(delay, when)
    if expires is not None:
        draft.expires = checked_expires(expires)
    draft.priority = checked_priority(priority)
    joined = session is not None
    await _make_ready(context, (draft,), remember, joined=joined)
    item_id = item_id or new_id()
    if draft.sequence is not None or context.broker.topics.bound.get(context.name):
        await push_drafts(Drafts(context, [draft], id is not None, joined), [(item_id.binary, wrapped, 0)])
        return item_id
    if draft.keyed is not None:
        envelope = draft.document(context, item_id, context.broker.encoding.unwrap("payload", wrapped))
        return await push_keyed(context, envelope, draft.keyed, id_given=remember is not None)
    await _insert_alone(context, draft, item_id, wrapped, joined=joined)
    return item_id


Shareable = tuple[QueueContext[Any], Draft, ObjectId, bytes]
"""One caller's item: its queue, options, id and payload."""


async def _insert_alone(
    context: QueueContext[Any], draft: Draft, id: ObjectId, wrapped: bytes, *, joined: bool
) -> None:
    """Insert a plain item by a command of its own, or together with other callers' items."""
    broker = context.broker
    try:
        if broker.group_commit and not joined:
            await share(Shared("push", _insert_for_callers, (context, draft, id, wrapped)))
            return  # recorded with the others
        await perform(Command("insert_one", {"document": draft.encode(context, id, wrapped)}))
    except (Duplicate, ReplyLost) as error:
        envelope = draft.encode(context, id, wrapped)
        if not (await is_new(broker, error, envelope, id_given=draft.once is not None)):
            return
    context.record_put(draft.priority, draft.at, id=id)


async def _insert_for_callers(entries: list[Shareable]) -> list[Any]:
    """Insert the items of several callers; a lost reply, or any other error, goes to the callers of its command."""
    if len(entries) == 1:
        ((context, draft, id, wrapped),) = entries
        await perform(Command("insert_one", {"document": draft.encode(context, id, wrapped)}))
        context.record_put(draft.priority, draft.at, id=id)
        return [None]
    answers: list[Any] = []
    for chunk in chunks(entries, lambda entry: entry[1].size(entry[3])):
        refusals: Mapping[int, Exception] = {}
        documents = [draft.encode(context, id, wrapped) for context, draft, id, wrapped in chunk]
        try:
            await perform(Command("insert_many", {"documents": documents, "ordered": False}))
        except PartlyRefused as refused:
            refusals = refused.refusals
        except Exception as error:
            refusals = dict(enumerate(copies(error, len(chunk))))
        _record([entry for place, entry in enumerate(chunk) if place not in refusals])
        answers += [refusals.get(place) for place in range(len(chunk))]
    return answers


def _record(inserted: Iterable[Shareable]) -> None:
    """Count inserted items, and wake the waiters of their queues."""
    kinds: dict[tuple[str, int, int], list[Shareable]] = {}
    for entry in inserted:
        kinds.setdefault((entry[0].name, entry[1].priority, entry[1].at), []).append(entry)
    for (queue, priority, at), alike in kinds.items():
        context = alike[0][0]
        if queue in context.broker.registry.wait_queues:
            # The change stream reports each item once more; a waiter recognises it by its id.
            for _, _, id, _ in alike:
                context.record_put(priority, at, id=id)
        else:
            context.record_put(priority, at, number=len(alike))


async def push_many(
    context: QueueContext[Any],
    payloads: Iterable[Any],
    *,
    delay: Duration | None,
    when: datetime | None,
    priority: int,
    headers: Mapping[str, Any] | None,
    ids: Iterable[Id] | None,
    once: Duration | None,
    sequence: str | None = None,
    sequences: Iterable[str | None] | None = None,
    expires: Expires | Iterable[Expires | None] | None = None,
    session: Any = None,
) -> list[ObjectId]:
    """Insert many items, or copies of them for each bound queue, and return their ids in order.

    Nothing is sent unless all of them can be stored. ``session`` is that of a caller's transaction; the bindings were
    read before that transaction's push.
    """
    values = _encode_payloads(context, payloads)
    given_ids = None if ids is None else _check_ids(ids, len(values))
    entered = _check_sequences(sequence, sequences, len(values))
    stored_headers = check_headers(headers, context.broker.encoding)
    common = (delay, when, checked_priority(priority), stored_headers, None)
    lasting = _check_expiries(expires, len(values))
    remember = remember_time(once, given_ids is not None)
    check_due(delay, when)
    if not values:
        return []
    if len(lasting) == len(entered) == 1:
        each, places = [Draft(*common, lasting[0], entered[0])], [0] * len(values)
    else:
        options = list(zip(_one_each(lasting, len(values)), _one_each(entered, len(values)), strict=True))
        at = {option: place for place, option in enumerate(dict.fromkeys(options))}
        each, places = [Draft(*common, *option) for option in at], [at[option] for option in options]
    drafts = Drafts(context, each, given_ids is not None, session is not None)
    await _make_ready(context, each, remember if drafts.id_given else None, joined=drafts.joined)
    if len(each) > 1 and context.broker.topics.bound.get(context.name):
        raise ArgumentInvalid("expires", f"give one for all items: {context.name!r} is a topic")
    raw = new_ids(len(values)) if given_ids is None else [id.binary for id in given_ids]
    await push_drafts(drafts, list(zip(raw, values, places, strict=True)))
    return given_ids or list(map(ObjectId, raw))


async def push_each(
    context: QueueContext[Any],
    each: Sequence[Draft],
    pushes: Sequence[Push],
    *,
    remember: timedelta,
    originals: Mapping[bytes, Mapping[str, Any]],
) -> None:
    """Insert items (``insert`` of many), or copies of them for each bound queue, each id once while it is remembered.

    Items with a key follow, one by one (``find``, ``findAndModify``), and then items with a sequence, in the order
    given, by transactions. A crash in between leaves some of them pushed; push all again. Raises ``BatchIncomplete``,
    or the driver's error when nothing was pushed. ``originals`` holds the fields that copies take over, by their ids;
    copies in the queues of a topic have the origin of a publication instead.

    Raises:
        TransactionsUnavailable: an item has a sequence, and the server is no replica set.
        ArgumentInvalid: an item has a sequence, and the queue is a topic.
    """
    if not pushes:
        return
    drafts = Drafts(context, each, id_given=True)
    await _make_ready(context, each, remember, joined=False)
    if not context.broker.topics.bound.get(context.name):
        drafts.originals = originals
    ordered = {place for place, draft in enumerate(each) if draft.sequence is not None}
    plain = [push for push in pushes if push[2] not in ordered] if ordered else pushes
    await push_drafts(drafts, plain, in_parts=True)
    if ordered:
        await push_drafts(drafts, [push for push in pushes if push[2] in ordered])


async def push_drafts(drafts: Drafts, pushes: Sequence[Push], *, in_parts: bool = False) -> None:
    """Insert items: into their sequences, into each queue bound to the topic, or into the queue; then those with a key.

    ``in_parts`` lets copies of many items go in as many transactions as they need.
    """
    context, each, id_given, joined = drafts.context, drafts.each, drafts.id_given, drafts.joined
    broker, bound = context.broker, context.broker.topics.bound.get(context.name)
    if any(map(SEQUENCE, each)) and any(each[push[2]].sequence for push in pushes):
        await _push_in_order(drafts, pushes)
        return
    keyed: list[Push] = []
    if any(draft.keyed for draft in each):
        keyed = [push for push in pushes if each[push[2]].keyed]
        pushes = [push for push in pushes if not each[push[2]].keyed]
    if pushes and bound:
        for part in _transactions(pushes, len(bound)) if in_parts else [pushes]:
            envelope, fresh = drafts.document(part[0], None), [(ObjectId(id), wrapped) for id, wrapped, _ in part]
            await publish(broker, envelope, fresh, bound, id_given=id_given, joined=joined)
    elif pushes and joined:
        envelope = drafts.document(pushes[0], None)
        items = [Copy(context.name, ObjectId(push[0]), drafts.encode(push)) for push in pushes]
        await insert_joined(broker, items, envelope, id_given=id_given)
    elif pushes:
        await _insert_in_chunks(drafts, pushes)
    for push in keyed:
        key, envelope = each[push[2]].keyed, drafts.document(push)
        assert key is not None
        if bound:
            await publish_keyed(broker, envelope, bound, key, id_given=id_given, joined=joined)
        else:
            await push_keyed(context, envelope, key, id_given=id_given)


def _transactions(pushes: Iterable[Push], queues: int) -> Iterator[list[Push]]:
    """Cut pushes into transactions of equal options that hold the copies for so many queues."""
    groups: dict[int, list[Push]] = {}
    for push in pushes:
        groups.setdefault(push[2], []).append(push)
    share = MAX_COMMAND_BYTES * queues / MAX_TRANSACTION_BYTES
    for same in groups.values():
        yield from chunks(same, lambda push: int(len(push[1]) * share) + 1, most=max(MAX_COPIES // queues, 1))


async def _push_in_order(drafts: Drafts, pushes: Sequence[Push]) -> None:
    """Push items into sequences, a transaction for each chunk, or all in the caller's.

    A crash in between leaves the first chunks pushed. Raises ``BatchIncomplete`` for the items of the others, or the
    driver's error when nothing was pushed.
    """
    done: list[ObjectId] = []
    for chunk in chunks(pushes, drafts.size, most=MAX_TRANSACTION_PUSHES):
        pairs = [(drafts.document(push), drafts.each[push[2]].sequence) for push in chunk]
        try:
            await push_in_order(drafts.context, pairs, id_given=drafts.id_given, joined=drafts.joined)
        except Exception as error:
            if not done:
                raise
            finish(drafts.context.name, done, dict.fromkeys(_ids(pushes[len(done) :]), own_error(error)))
        done += _ids(chunk)


async def _insert_in_chunks(drafts: Drafts, pushes: Sequence[Push]) -> None:
    """Send the chunks; after a lost reply the next one is still sent, after any other error none.

    Raises ``BatchIncomplete``, or the driver's error when nothing was pushed.
    """
    queue = drafts.context.name
    failed: Failures = {}
    stopped: Exception | None = None
    unknown_fate = False
    for chunk in chunks(pushes, drafts.size):
        try:
            if stopped is not None:
                raise stopped
            refused, unknown = await _insert_chunk(drafts, chunk, again=drafts.id_given)
        except Exception as error:
            stopped = error
            refused, unknown = dict.fromkeys(_ids(chunk), own_error(error)), False
        failed |= refused
        unknown_fate |= unknown
    if not failed:
        return
    pushed_ids = [id for id in _ids(pushes) if id not in failed]
    if unknown_fate:
        # The caller does not know the generated ids yet, so it could not look for the pushed items by itself.
        raise BatchIncomplete(queue, pushed_ids, failed) from next(iter(failed.values()))
    finish(queue, pushed_ids, failed)


def _ids(chunk: Iterable[Push]) -> list[ObjectId]:
    """Return the ids as ``ObjectId``; made on demand, since most calls need none."""
    return [ObjectId(push[0]) for push in chunk]


async def _insert_chunk(drafts: Drafts, chunk: Sequence[Push], *, again: bool) -> tuple[Failures, bool]:
    """Insert a chunk; return the errors of items not known to be stored, and whether some of them may be stored.

    Ids given by the producer are remembered, so a chunk of them is safe to send again (``again``). Another chunk could
    double an item that was inserted and settled in the meantime.
    """
    context = drafts.context
    documents = list(map(drafts.encode, chunk))
    command: Command[Any] = Command("insert_many", {"documents": documents, "ordered": False}, resolved=again)
    try:
        await (retry_until_reply(command) if again else perform(command))
    except PartlyRefused as refused:
        drafts.record(push for place, push in enumerate(chunk) if place not in refused.refusals)
        known: list[Push] = []
        failures: Failures = {}
        for place, error in refused.refusals.items():
            if again and isinstance(error, Duplicate):
                known.append(chunk[place])
            else:
                failures[ObjectId(chunk[place][0])] = own_error(error)
        if not known:
            return failures, False
        taken, stored_ids = await _find_taken(context, _ids(known))
        # The document with an id may have been removed since: then the item is inserted.
        removed = [push for push in known if push[0] not in stored_ids]
        more, unknown = (await _insert_chunk(drafts, removed, again=True)) if removed else ({}, False)
        return taken | more | failures, unknown
    except ReplyLost as reply:
        missing = ids = _ids(chunk)
        failures = {}
        try:
            # An update that changes nothing waits for the majority, as any does; most often it finds all of them.
            there = {"filter": {"_id": {"$in": ids}}, "update": {"$unset": {"unheard_of": ""}}}
            is_complete = (await retry_once(Command("update_many", there, number_matched))) == len(ids)
            missing = []
            if again or not is_complete:
                taken, stored_ids = await _find_taken(context, ids)
                failures = taken if again else {}
                missing = [id for id in ids if id.binary not in stored_ids]
        except Exception as error:
            logger.debug("what was pushed could not be looked for: %r", error)
        absent = {id.binary for id in missing}
        drafts.record(push for push in chunk if push[0] not in absent)
        return failures | dict.fromkeys(missing, reply.cause), bool(missing)
    drafts.record(chunk)
    return {}, False


async def _find_taken(context: QueueContext[Any], ids: list[ObjectId]) -> tuple[Failures, set[bytes]]:
    """Return the errors of ids that other pushes have used (``find``), and the ids that exist."""
    documents = await find_pushed(context.broker, ids)
    failures: Failures = {
        document["_id"]: DuplicateItem(
            document.get("q", ""), None, document["_id"], id=document["_id"], to=context.name
        )
        for document in documents
        if not is_same_push(document, context.name)
    }
    return failures, {document["_id"].binary for document in documents}


def _check_sequences(sequence: Any, sequences: Any, number: int) -> list[str | None]:
    """Return the sequence of each item, or a list with the one of all."""
    if sequences is None:
        return [None if sequence is None else check_sequence(sequence)]
    if sequence is not None:
        raise ArgumentInvalid("sequences", "give either sequence= for all items or sequences= with one for each")
    listed = read_list(sequences, "sequences")
    if len(listed) != number:
        raise ArgumentInvalid("sequences", f"{len(listed)} sequences for {number} payloads; give one or None for each")
    return [None if one is None else check_sequence(one, f"sequences[{place}]") for place, one in enumerate(listed)]


def _check_expiries(expires: Any, number: int) -> list[timedelta | datetime | None]:
    """Return the time that each item has for its start, or a list with the one of all."""
    if expires is None or isinstance(expires, timedelta | int | float | datetime | str | bytes | Mapping):
        return [None if expires is None else checked_expires(expires)]
    listed = read_list(expires, "expires")
    each = [None if one is None else checked_expires(one, f"expires[{place}]") for place, one in enumerate(listed)]
    if len(each) != number:
        raise ArgumentInvalid("expires", f"{len(each)} times for {number} payloads; give one for each, or one for all")
    return each


def _one_each(options: list[Any], number: int) -> list[Any]:
    return options if len(options) == number else options * number


def _encode_payloads(context: QueueContext[Any], payloads: Iterable[Any]) -> list[bytes]:
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


def _check_ids(ids: Iterable[Id], number: int) -> list[ObjectId]:
    object_ids = [object_id(id, f"ids[{place}]") for place, id in enumerate(read_list(ids, "ids"))]
    if len(object_ids) != number:
        raise ArgumentInvalid("ids", f"{len(object_ids)} ids for {number} payloads; give one for each")
    if len({id.binary for id in object_ids}) != number:
        raise ArgumentInvalid("ids", "the same id is given twice; one item has one id")
    return object_ids
