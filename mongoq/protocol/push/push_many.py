"""Pushes of many items: ``insert`` in chunks, and the result when one chunk fails."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.errors import ArgumentInvalid, BatchIncomplete, DuplicateItem
from mongoq.model.arguments import Duration, Expires, Id, object_id, read_list
from mongoq.model.arguments import expires as checked_expires
from mongoq.model.arguments import priority as checked_priority
from mongoq.model.encoding.ids import new_ids
from mongoq.model.envelope import Stencil, is_same_push, new_envelope
from mongoq.model.sequence import check_sequence, topic_problem
from mongoq.protocol.base.find import find_few
from mongoq.protocol.base.queue_settings import ensure_ready
from mongoq.protocol.base.retry import retry_once, retry_until_reply
from mongoq.protocol.base.topics import ensure_ready_to_push
from mongoq.protocol.flow import (
    MAX_COMMAND_BYTES,
    Command,
    Duplicate,
    Flow,
    PartlyRefused,
    ReplyLost,
    chunks,
    finish,
    number_matched,
    own_error,
    with_place,
)
from mongoq.protocol.push.in_order import push_in_order
from mongoq.protocol.push.insert import Keyed, find_pushed, push_keyed
from mongoq.protocol.push.publish import MAX_COPIES, MAX_TRANSACTION_BYTES, Copy, insert_joined, publish, publish_many
from mongoq.protocol.push.push import check_due, check_headers, due_time, is_put_off, last_start, remember_time
from mongoq.protocol.sequence.control import ensure_possible
from mongoq.protocol.state.context import QueueContext

logger = logging.getLogger("mongoq.push")

Failures = dict[ObjectId, Exception]


@dataclass(frozen=True, slots=True, eq=False)
class PushOptions:
    """Options of one push besides its payload, checked; pushes with the same options share one object.

    Attributes:
        delay: how long the item waits; ``None`` when it does not, or has a ``when``.
        when: the time from which on it is eligible, or ``None``.
        priority: its priority.
        headers: its headers, in the form to send.
        key: its key; while an item of that key is live, nothing is pushed.
        expires: how long it may wait for its start, or until when; ``None`` for ever.
        sequence: sequence that it enters, in ``push_each``.
    """

    delay: Duration | None = None
    when: datetime | None = None
    priority: int = 0
    headers: Any = None
    key: str | None = None
    expires: timedelta | datetime | None = None
    sequence: str | None = None


Push = tuple[bytes, bytes, int]
"""One push: its id in 12 bytes, its payload as ``{"payload": payload}`` in BSON, and the index of its options.

It holds only bytes and numbers, since the interpreter's garbage collector skips tuples of them.
"""


class _Envelopes:
    """Envelopes of pushes; the part that pushes with the same options share is made once.

    Args:
        context: the queue.
        options: the options, by the indexes in the pushes.
        remember: how long the ids are remembered; ``None`` when they were not given by the producer.
        originals: further fields of the pushes that are copies, by their ids; headers of the options go before theirs.
    """

    def __init__(
        self,
        context: QueueContext[Any],
        options: Sequence[PushOptions],
        remember: timedelta | None,
        originals: Mapping[bytes, Mapping[str, Any]] | None = None,
    ) -> None:
        clock = context.broker.clock
        self._originals = originals or {}
        self._context = context
        self._options = options
        self._due = [due_time(clock, push_options.delay, push_options.when) for push_options in options]
        self._start_by = [
            self._last_start(push_options, due) for push_options, due in zip(options, self._due, strict=True)
        ]
        self._until = None if remember is None else clock.now() + remember
        self._stencils: list[Stencil | None] = [None] * len(options)

    def _last_start(self, options: PushOptions, due: datetime) -> datetime | None:
        if options.expires is None:
            return None
        known = due if is_put_off(options.delay, options.when) else None
        return last_start(self._context.broker.clock, options.expires, known)

    def encode(self, push: Push) -> RawBSONDocument:
        """Return the envelope of a push without a key, in the form to send."""
        return self._stencil(push).envelope(push[0], push[1])

    def size(self, push: Push) -> int:
        """Return the envelope's size in bytes."""
        return self._stencil(push).size(push[1])

    def _stencil(self, push: Push) -> Stencil:
        if push[0] in self._originals:
            return Stencil(self._context.broker.encoding, self.document(push, None))
        stencil = self._stencils[push[2]]
        if stencil is None:
            stencil = self._stencils[push[2]] = Stencil(self._context.broker.encoding, self.document(push, None))
        return stencil

    def document(self, push: Push, payload: Any) -> dict[str, Any]:
        """Return the envelope of a push as a document."""
        id, _, place = push
        options = self._options[place]
        copied = dict(self._originals.get(id, {}))
        headers = copied.pop("headers", None)
        envelope = new_envelope(
            self._context.name,
            payload,
            id=ObjectId(id),
            when=self._due[place],
            priority=options.priority,
            headers=headers if options.headers is None else options.headers,
            once=self._until,
            start_by=self._start_by[place],
        )
        return envelope | copied

    def record(self, pushes: Sequence[Push]) -> None:
        """Record the new items, option by option."""
        for place, number in Counter(place for _, _, place in pushes).items():
            name, priority = self._context.name, self._options[place].priority
            self._context.broker.record_put(name, self._due[place], priority, number=number)


def push_many(
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
) -> Flow[list[ObjectId]]:
    """Insert many items, or copies of them for each bound queue, and return their ids in order.

    Nothing is sent unless all of them can be stored. ``session`` is that of a caller's transaction; the bindings were
    read before that transaction's push.
    """
    joined = session is not None
    values = _encode_payloads(context, payloads)
    given_ids = None if ids is None else _check_ids(ids, len(values))
    in_sequences = _check_sequences(sequence, sequences, len(values))
    stored_headers = check_headers(headers, context.broker.encoding)
    common = PushOptions(delay, when, checked_priority(priority), stored_headers)
    options, places = _with_expiry(common, expires, len(values))
    remember = remember_time(once, given_ids is not None)
    check_due(delay, when)
    if not values:
        return []
    is_ordered = any(one is not None for one in in_sequences)
    if is_ordered and not joined:
        yield from ensure_possible(context.broker)
    yield from ensure_ready(context, fresh=False) if joined else ensure_ready_to_push(context)
    raw = new_ids(len(values)) if given_ids is None else [id.binary for id in given_ids]
    identities = given_ids or list(map(ObjectId, raw))
    if given_ids is not None:
        context.state.expect_remembered(remember)
    envelopes = _Envelopes(context, options, None if given_ids is None else remember)
    pushes = list(zip(raw, values, places, strict=True))
    if is_ordered:
        yield from _push_in_order(
            context, pushes, in_sequences, envelopes, id_given=given_ids is not None, joined=joined
        )
    elif bound := context.broker.topics.bound.get(context.name):
        if len(options) > 1:
            raise ArgumentInvalid("expires", f"give one for all items: {context.name!r} is a topic")
        fresh = list(zip(identities, values, strict=True))
        first = envelopes.document(pushes[0], None)
        yield from publish_many(context.broker, first, fresh, bound, id_given=given_ids is not None, joined=joined)
    elif joined:
        copies = [Copy(context.name, id, envelopes.encode(push)) for id, push in zip(identities, pushes, strict=True)]
        first = envelopes.document(pushes[0], None)
        yield from insert_joined(context.broker, copies, first, id_given=given_ids is not None)
    else:
        yield from _insert_in_chunks(context, pushes, envelopes, again=given_ids is not None)
    return identities


MAX_TRANSACTION_PUSHES = 1_000
"""Items pushed into sequences in one transaction, at most."""


def _check_sequences(sequence: Any, sequences: Any, number: int) -> list[str | None]:
    """Return the sequence of each item, or an empty list if none has one."""
    if sequences is None:
        return [] if sequence is None else [check_sequence(sequence)] * number
    if sequence is not None:
        raise ArgumentInvalid("sequences", "give either sequence= for all items or sequences= with one for each")
    listed = read_list(sequences, "sequences")
    if len(listed) != number:
        raise ArgumentInvalid("sequences", f"{len(listed)} sequences for {number} payloads; give one or None for each")
    return [None if one is None else check_sequence(one, f"sequences[{place}]") for place, one in enumerate(listed)]


def _push_in_order(
    context: QueueContext[Any],
    pushes: Sequence[Push],
    sequences: Sequence[str | None],
    envelopes: _Envelopes,
    *,
    id_given: bool,
    joined: bool,
) -> Flow[None]:
    """Push items into sequences, a transaction for each chunk, or all in the caller's (``joined``).

    A crash in between leaves the first chunks pushed. Raises ``BatchIncomplete`` for the items of the others, or the
    driver's error when nothing was pushed.
    """
    each = list(zip(pushes, sequences, strict=True))
    done: list[ObjectId] = []
    for chunk in chunks(each, lambda pair: envelopes.size(pair[0]), most=MAX_TRANSACTION_PUSHES):
        pairs = [
            (envelopes.document(push, context.broker.encoding.unwrap("payload", push[1])), sequence)
            for push, sequence in chunk
        ]
        try:
            yield from push_in_order(context, pairs, id_given=id_given, joined=joined)
        except Exception as error:
            if not done:
                raise
            rest = [ObjectId(push[0]) for push, _ in each[len(done) :]]
            finish(context.name, done, dict.fromkeys(rest, own_error(error)))
        done += [ObjectId(push[0]) for push, _ in chunk]


def _with_expiry(common: PushOptions, expires: Any, number: int) -> tuple[list[PushOptions], list[int]]:
    """Return the different options of a call, and which of them each item has."""
    if expires is None or isinstance(expires, timedelta | int | float | datetime | str | bytes | Mapping):
        lasts = None if expires is None else checked_expires(expires)
        return [replace(common, expires=lasts)], [0] * number
    each = [
        None if one is None else checked_expires(one, f"expires[{place}]")
        for place, one in enumerate(read_list(expires, "expires"))
    ]
    if len(each) != number:
        raise ArgumentInvalid("expires", f"{len(each)} times for {number} payloads; give one for each, or one for all")
    different = list(dict.fromkeys(each))
    at = {lasts: place for place, lasts in enumerate(different)}
    return [replace(common, expires=lasts) for lasts in different], [at[lasts] for lasts in each]


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


def _insert_in_chunks(
    context: QueueContext[Any], pushes: Sequence[Push], envelopes: _Envelopes, *, again: bool
) -> Flow[None]:
    """Send the chunks; after a lost reply the next one is still sent, after any other error none.

    Raises ``BatchIncomplete``, or the driver's error when nothing was pushed. ``again`` means that the ids may exist
    already.
    """
    failed: Failures = {}
    stopped: Exception | None = None
    unknown_fate = False
    for chunk in chunks(pushes, envelopes.size):
        try:
            if stopped is not None:
                raise stopped
            refused, unknown = yield from _insert_chunk(context, chunk, envelopes, again=again)
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
        raise BatchIncomplete(context.name, pushed_ids, failed) from next(iter(failed.values()))
    finish(context.name, pushed_ids, failed)


def _ids(chunk: Iterable[Push]) -> list[ObjectId]:
    """Return the ids as ``ObjectId``; made on demand, since most calls need none."""
    return [ObjectId(push[0]) for push in chunk]


def _insert_chunk(
    context: QueueContext[Any], chunk: Sequence[Push], envelopes: _Envelopes, *, again: bool
) -> Flow[tuple[Failures, bool]]:
    """Insert a chunk; return the errors of items not known to be stored, and whether some of them may be stored.

    Ids given by the producer are remembered, so a chunk of them is safe to send again. Another chunk could double an
    item that was inserted and settled in the meantime.
    """
    documents = list(map(envelopes.encode, chunk))
    command: Command[Any] = Command("insert_many", {"documents": documents, "ordered": False}, resolved=again)
    try:
        yield from (retry_until_reply(command) if again else command)
    except PartlyRefused as refused:
        envelopes.record([push for place, push in enumerate(chunk) if place not in refused.refusals])
        failed = {
            place: own_error(error)
            for place, error in refused.refusals.items()
            if not (again and isinstance(error, Duplicate))
        }
        there = [chunk[place] for place in refused.refusals if place not in failed]
        duplicates, unknown = yield from _resolve_duplicates(context, there, envelopes)
        return duplicates | {ObjectId(chunk[place][0]): error for place, error in failed.items()}, unknown
    except ReplyLost as reply:
        missing = ids = _ids(chunk)
        failures: Failures = {}
        try:
            missing = yield from _find_missing(context, ids)
            if again:
                failures, _ = yield from _find_taken(context, ids)
        except Exception as error:
            logger.debug("what was pushed could not be looked for: %r", error)
        absent = set(missing)
        envelopes.record([push for push, id in zip(chunk, ids, strict=True) if id not in absent])
        return failures | dict.fromkeys(missing, reply.cause), bool(missing)
    envelopes.record(chunk)
    return {}, False


def _resolve_duplicates(
    context: QueueContext[Any], chunk: Sequence[Push], envelopes: _Envelopes
) -> Flow[tuple[Failures, bool]]:
    """Compare duplicate ids with the pushes that used them, and return the same as ``_insert_chunk``.

    The document with an id may have been removed since: then the item is inserted.
    """
    if not chunk:
        return {}, False
    failures, stored_ids = yield from _find_taken(context, _ids(chunk))
    missing = [push for push in chunk if push[0] not in stored_ids]
    if not missing:
        return failures, False
    more, unknown = yield from _insert_chunk(context, missing, envelopes, again=True)
    return failures | more, unknown


def _find_taken(context: QueueContext[Any], ids: list[ObjectId]) -> Flow[tuple[Failures, set[bytes]]]:
    """Return the errors of ids that other pushes have used (``find``), and the ids that exist."""
    documents = yield from find_pushed(context.broker, ids)
    failures: Failures = {
        document["_id"]: DuplicateItem(
            document.get("q", ""), None, document["_id"], id=document["_id"], to=context.name
        )
        for document in documents
        if not is_same_push(document, context.name)
    }
    return failures, {document["_id"].binary for document in documents}


def _find_missing(context: QueueContext[Any], ids: list[ObjectId]) -> Flow[list[ObjectId]]:
    """Return the ids that are not stored, by an update that changes nothing and waits for the majority, as any does."""
    nothing = {"$unset": {"unheard_of": ""}}
    command = Command("update_many", {"filter": {"_id": {"$in": ids}}, "update": nothing}, number_matched)
    if (yield from retry_once(command)) == len(ids):
        return []
    # Rarely needed: most often the update has found all of them.
    documents = yield from find_few(
        context.broker, {"_id": {"$in": ids}}, [("_id", 1)], len(ids), projection={"_id": 1}
    )
    there = {document["_id"] for document in documents}
    return [id for id in ids if id not in there]


def push_each(
    context: QueueContext[Any],
    options: Sequence[PushOptions],
    pushes: Sequence[Push],
    *,
    remember: timedelta,
    originals: Mapping[bytes, Mapping[str, Any]] | None = None,
) -> Flow[None]:
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
    sequences = {place: sequence for place, each in enumerate(options) if (sequence := each.sequence) is not None}
    if sequences:
        yield from ensure_possible(context.broker)
    yield from ensure_ready_to_push(context)
    bound = context.broker.topics.bound.get(context.name)
    if sequences and bound:
        raise ArgumentInvalid("sequence", topic_problem(context.name))
    envelopes = _Envelopes(context, options, remember, None if bound else originals)
    keyed = (
        [push for push in pushes if options[push[2]].key is not None]
        if any(push_options.key for push_options in options)
        else []
    )
    in_order = [push for push in pushes if push[2] in sequences] if sequences else []
    plain = pushes
    if keyed or in_order:
        plain = [push for push in pushes if options[push[2]].key is None and push[2] not in sequences]
    if bound:
        yield from _publish_parts(context, plain, envelopes, bound)
    elif plain:
        yield from _insert_in_chunks(context, plain, envelopes, again=True)
    for push in keyed:
        yield from _push_with_key(context, push, str(options[push[2]].key), envelopes)
    if in_order:
        entered = [sequences[push[2]] for push in in_order]
        yield from _push_in_order(context, in_order, entered, envelopes, id_given=True, joined=False)


def _publish_parts(
    context: QueueContext[Any], pushes: Iterable[Push], envelopes: _Envelopes, bound: Sequence[str]
) -> Flow[None]:
    """Put copies into each bound queue, as many in a transaction as fit."""
    for part in _transactions(pushes, len(bound)):
        envelope = envelopes.document(part[0], None)
        fresh = [(ObjectId(id), wrapped) for id, wrapped, _ in part]
        yield from publish_many(context.broker, envelope, fresh, bound, id_given=True)


def _transactions(pushes: Iterable[Push], queues: int) -> Iterator[list[Push]]:
    groups: dict[int, list[Push]] = {}
    for push in pushes:
        groups.setdefault(push[2], []).append(push)
    share = MAX_COMMAND_BYTES * queues / MAX_TRANSACTION_BYTES
    for same in groups.values():
        yield from chunks(same, lambda push: int(len(push[1]) * share) + 1, most=max(MAX_COPIES // queues, 1))


def _push_with_key(context: QueueContext[Any], push: Push, key: str, envelopes: _Envelopes) -> Flow[None]:
    broker, keyed = context.broker, Keyed(key, "keep")
    envelope = envelopes.document(push, broker.encoding.unwrap("payload", push[1]))
    if bound := broker.topics.bound.get(context.name):
        yield from publish(broker, envelope, bound, keyed, id_given=True, joined=False)
    else:
        yield from push_keyed(context, envelope, keyed, id_given=True)
