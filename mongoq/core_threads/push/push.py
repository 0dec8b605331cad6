# Generated from mongoq/core/push/push.py by scripts/unasync.py. Do not edit.
"""Pushes: checked into drafts, and inserted alone, with those of other callers, or in chunks.

``push``, ``push_many`` and ``push_each`` check their arguments. ``_send`` takes the drafts to a queue, to its
sequences, or to the queues of a topic. A lone push of a plain item is one ``insert``, which callers may share.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from mongoq.core.command import (
    MAX_COMMAND_BYTES,
    Command,
    Duplicate,
    PartlyRefused,
    ReplyLost,
    Shared,
    chunks,
    copies,
    finish,
    own_error,
)
from mongoq.core.push.draft import (
    Draft,
    Drafts,
    Push,
    check_expiries,
    check_ids,
    check_sequences,
    encode_payloads,
    make_draft,
)
from mongoq.core.push.publish import MAX_COPIES, MAX_TRANSACTION_BYTES, Copy, copy_for_queue
from mongoq.core.push.push import MAX_TRANSACTION_PUSHES, SEQUENCE, Failures, Shareable, _ids, logger
from mongoq.core.state.context import QueueContext
from mongoq.core_threads.base.queue_settings import ensure_ready
from mongoq.core_threads.base.retry import retry_once, retry_until_reply
from mongoq.core_threads.base.topics import ensure_ready_to_push
from mongoq.core_threads.base.transaction import ensure_possible
from mongoq.core_threads.perform import perform, share
from mongoq.core_threads.push.insert import find_pushed, is_new
from mongoq.core_threads.push.publish import insert_copies, push_in_order, push_keyed
from mongoq.data.arguments import Duration, Expires, Id, object_id
from mongoq.data.arguments import expires as checked_expires
from mongoq.data.envelope import is_same_push, new_ids
from mongoq.data.push_options import OnDuplicate, check_keyed, remember_time
from mongoq.data.sequence import topic_problem
from mongoq.errors import ArgumentInvalid, BatchIncomplete, DuplicateItem


def _make_ready(
    context: QueueContext[Any], drafts: Sequence[Draft], remember: timedelta | None, *, joined: bool
) -> None:
    """Make the queue ready to be pushed to, and set the times of the drafts.

    Raises:
        TransactionsUnavailable: an item has a sequence, and the server is no replica set.
        ArgumentInvalid: an item has a sequence, and the queue is a topic.
    """
    is_ordered = any(map(SEQUENCE, drafts))
    if is_ordered and not joined:
        ensure_possible(context.broker)
    if joined:
        ensure_ready(context, fresh=False)
    elif time.monotonic() >= context.broker.calm_until or not context.is_saved(time.monotonic()):
        ensure_ready_to_push(context)
    if is_ordered and context.broker.topics.bound.get(context.name):
        raise ArgumentInvalid("sequence", topic_problem(context.name))
    if remember is not None:
        context.state.expect_remembered(remember)
    for draft in drafts:
        draft.stamp(context.broker.clock, remember)


def push(
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
    wrapped = context.codec.wrap(payload)
    draft = make_draft(context, delay, when, priority, headers)
    if key is not None or on_duplicate != "keep":
        draft.keyed = check_keyed(key, on_duplicate)
    if sequence is not None:
        draft.enter(sequence)
    if expires is not None:
        draft.expires = checked_expires(expires)
    remember = None if id is None and once is None else remember_time(once, id is not None)
    item_id = None if id is None else object_id(id)
    joined = session is not None
    _make_ready(context, (draft,), remember, joined=joined)
    item_id = item_id or ObjectId(new_ids(1)[0])
    if draft.sequence is not None or context.broker.topics.bound.get(context.name):
        _send(Drafts(context, [draft], id is not None, joined), [(item_id.binary, wrapped, 0)])
        return item_id
    if draft.keyed is not None:
        envelope = draft.document(context, item_id, context.broker.encoding.unwrap("payload", wrapped))
        return push_keyed(context.broker, envelope, (), draft.keyed, id_given=remember is not None, joined=joined)
    try:
        if context.broker.group_commit and not joined:
            share(Shared("push", _insert_for_callers, (context, draft, item_id, wrapped)))
            return item_id  # recorded with the others
        perform(Command("insert_one", {"document": draft.encode(context, item_id, wrapped)}))
    except (Duplicate, ReplyLost) as error:
        envelope = draft.encode(context, item_id, wrapped)
        if not (is_new(context.broker, error, envelope, id_given=remember is not None)):
            return item_id
    context.record_put(draft.priority, draft.at, id=item_id)
    return item_id


def _insert_for_callers(entries: list[Shareable]) -> list[Any]:
    """Insert the items of several callers; a lost reply, or any other error, goes to the callers of its command."""
    if len(entries) == 1:
        ((context, draft, id, wrapped),) = entries
        perform(Command("insert_one", {"document": draft.encode(context, id, wrapped)}))
        context.record_put(draft.priority, draft.at, id=id)
        return [None]
    answers: list[Any] = []
    for chunk in chunks(entries, lambda entry: entry[1].size(entry[3])):
        refusals: Mapping[int, Exception] = {}
        documents = [draft.encode(context, id, wrapped) for context, draft, id, wrapped in chunk]
        try:
            perform(Command("insert_many", {"documents": documents, "ordered": False}))
        except PartlyRefused as refused:
            refusals = refused.refusals
        except Exception as error:
            refusals = dict(enumerate(copies(error, len(chunk))))
        for place, (context, draft, id, _) in enumerate(chunk):
            if place not in refusals:
                context.record_put(draft.priority, draft.at, id=id)
        answers += [refusals.get(place) for place in range(len(chunk))]
    return answers


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
) -> list[ObjectId]:
    """Insert many items, or copies of them for each bound queue, and return their ids in order.

    Nothing is sent unless all of them can be stored. ``session`` is that of a caller's transaction; the bindings were
    read before that transaction's push.
    """
    values = encode_payloads(context, payloads)
    given_ids = None if ids is None else check_ids(ids, len(values))
    entered = check_sequences(sequence, sequences, len(values))
    common = make_draft(context, delay, when, priority, headers)
    lasting = check_expiries(expires, len(values))
    remember = remember_time(once, given_ids is not None)
    if not values:
        return []
    number = max(len(lasting), len(entered))  # 1 when all items have the same options
    options = zip(*(one if len(one) == number else one * number for one in (lasting, entered)), strict=True)
    at: dict[Any, int] = {}
    places = [at.setdefault(option, len(at)) for option in options] * (len(values) // number)
    each = [replace(common, expires=lasts, sequence=sequence) for lasts, sequence in at]
    drafts = Drafts(context, each, given_ids is not None, session is not None)
    _make_ready(context, each, remember if drafts.id_given else None, joined=drafts.joined)
    if len(each) > 1 and context.broker.topics.bound.get(context.name):
        raise ArgumentInvalid("expires", f"give one for all items: {context.name!r} is a topic")
    raw = new_ids(len(values)) if given_ids is None else [id.binary for id in given_ids]
    _send(drafts, list(zip(raw, values, places, strict=True)))
    return given_ids or list(map(ObjectId, raw))


def push_each(
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
    _make_ready(context, each, remember, joined=False)
    if not context.broker.topics.bound.get(context.name):
        drafts.originals = originals
    ordered = {place for place, draft in enumerate(each) if draft.sequence is not None}
    plain = [push for push in pushes if push[2] not in ordered] if ordered else pushes
    _send(drafts, plain, in_parts=True)
    if ordered:
        _send(drafts, [push for push in pushes if push[2] in ordered])


def _send(drafts: Drafts, pushes: Sequence[Push], *, in_parts: bool = False) -> None:
    """Insert items: into their sequences, into each queue bound to the topic, or into the queue; then those with a key.

    ``in_parts`` lets copies of many items go in as many transactions as they need.
    """
    context, each, id_given, joined = drafts.context, drafts.each, drafts.id_given, drafts.joined
    broker, bound = context.broker, context.broker.topics.bound.get(context.name)
    if any(map(SEQUENCE, each)) and any(each[push[2]].sequence for push in pushes):
        _push_in_order(drafts, pushes)
        return
    keyed: list[Push] = []
    if any(draft.keyed for draft in each):
        keyed = [push for push in pushes if each[push[2]].keyed]
        pushes = [push for push in pushes if not each[push[2]].keyed]
    if pushes and bound:
        parts: list[Sequence[Push]] = [] if in_parts else [pushes]
        if in_parts:  # in transactions of equal options
            groups: dict[int, list[Push]] = {}
            for push in pushes:
                groups.setdefault(push[2], []).append(push)
            share, most = MAX_COMMAND_BYTES * len(bound) / MAX_TRANSACTION_BYTES, max(MAX_COPIES // len(bound), 1)
            for same in groups.values():
                parts += chunks(same, lambda push: int(len(push[1]) * share) + 1, most=most)
        for part in parts:
            envelope, at = drafts.document(part[0], None), broker.clock.now()
            copied = [
                copy_for_queue(broker, {**envelope, "_id": ObjectId(id)}, wrapped, queue, at)
                for queue in bound
                for id, wrapped, _ in part
            ]
            size = sum(len(wrapped) for _, wrapped, _ in part) * len(bound)
            insert_copies(broker, copied, envelope, len(part), size, id_given=id_given, joined=joined)
    elif pushes and joined:
        envelope = drafts.document(pushes[0], None)
        items = [Copy(context.name, ObjectId(push[0]), drafts.encode(push)) for push in pushes]
        size = sum(len(item.document.raw) for item in items)
        insert_copies(broker, items, envelope, len(items), size, id_given=id_given, joined=True)
    elif pushes:
        _insert_in_chunks(drafts, pushes)
    for push in keyed:
        key, envelope = each[push[2]].keyed, drafts.document(push)
        assert key is not None
        push_keyed(broker, envelope, bound or (), key, id_given=id_given, joined=joined)


def _push_in_order(drafts: Drafts, pushes: Sequence[Push]) -> None:
    """Push items into sequences, a transaction for each chunk, or all in the caller's.

    A crash in between leaves the first chunks pushed. Raises ``BatchIncomplete`` for the items of the others, or the
    driver's error when nothing was pushed.
    """
    done: list[ObjectId] = []
    for chunk in chunks(pushes, drafts.size, most=MAX_TRANSACTION_PUSHES):
        pairs = [(drafts.document(push), drafts.each[push[2]].sequence) for push in chunk]
        try:
            push_in_order(drafts.context, pairs, id_given=drafts.id_given, joined=drafts.joined)
        except Exception as error:
            if not done:
                raise
            finish(drafts.context.name, done, dict.fromkeys(_ids(pushes[len(done) :]), own_error(error)))
        done += _ids(chunk)


def _insert_in_chunks(drafts: Drafts, pushes: Sequence[Push]) -> None:
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
            refused, unknown = _insert_chunk(drafts, chunk, again=drafts.id_given)
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


def _insert_chunk(drafts: Drafts, chunk: Sequence[Push], *, again: bool) -> tuple[Failures, bool]:
    """Insert a chunk; return the errors of items not known to be stored, and whether some of them may be stored.

    Ids given by the producer are remembered, so a chunk of them is safe to send again (``again``). Another chunk could
    double an item that was inserted and settled in the meantime.
    """
    context = drafts.context
    documents = list(map(drafts.encode, chunk))
    command: Command[Any] = Command("insert_many", {"documents": documents, "ordered": False}, resolved=again)
    try:
        (retry_until_reply(command) if again else perform(command))
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
        taken, stored_ids = _find_taken(context, _ids(known))
        # The document with an id may have been removed since: then the item is inserted.
        removed = [push for push in known if push[0] not in stored_ids]
        more, unknown = (_insert_chunk(drafts, removed, again=True)) if removed else ({}, False)
        return taken | more | failures, unknown
    except ReplyLost as reply:
        missing = ids = _ids(chunk)
        failures = {}
        try:
            # An update that changes nothing waits for the majority, as any does.
            there = {"filter": {"_id": {"$in": ids}}, "update": {"$unset": {"unheard_of": ""}}}
            retry_once(Command[Any]("update_many", there))
            taken, stored_ids = _find_taken(context, ids)
            failures = taken if again else {}
            missing = [id for id in ids if id.binary not in stored_ids]
        except Exception as error:
            logger.debug("what was pushed could not be looked for: %r", error)
        absent = {id.binary for id in missing}
        drafts.record(push for push in chunk if push[0] not in absent)
        return failures | dict.fromkeys(missing, reply.cause), bool(missing)
    drafts.record(chunk)
    return {}, False


def _find_taken(context: QueueContext[Any], ids: list[ObjectId]) -> tuple[Failures, set[bytes]]:
    """Return the errors of ids that other pushes have used (``find``), and the ids that exist."""
    documents = find_pushed(context.broker, ids)
    failures: Failures = {
        document["_id"]: DuplicateItem(
            document.get("q", ""), None, document["_id"], id=document["_id"], to=context.name
        )
        for document in documents
        if not is_same_push(document, context.name)
    }
    return failures, {document["_id"].binary for document in documents}
