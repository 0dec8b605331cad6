"""Publications: an item pushed to a topic is copied into each bound queue, all in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.errors import ArgumentInvalid, PayloadTooLarge
from mongoq.model.copies import make_bound_copy
from mongoq.model.envelope import Document, is_same_push, splice
from mongoq.protocol.base.transaction import run_in_transaction
from mongoq.protocol.flow import Command, Flow, chunks
from mongoq.protocol.push.insert import Keyed, find_pushed, id_taken_error, insert_item, upsert_keyed
from mongoq.protocol.state.context import BrokerContext

MAX_COPIES = 30_000
"""Copies that one transaction writes, at most."""
MAX_TRANSACTION_BYTES = 32 * 1024 * 1024
"""Bytes that one transaction writes, at most: the server keeps all of them in its cache until the end."""


class Copy(NamedTuple):
    """One copy in the form to send."""

    queue: str
    id: ObjectId
    document: RawBSONDocument


class _Put(NamedTuple):
    """Item of a publication in one queue, and whether it is new there."""

    queue: str
    id: ObjectId
    new: bool


def publish(
    broker: BrokerContext,
    envelope: Document,
    queues: Sequence[str],
    keyed: Keyed | None,
    *,
    id_given: bool,
    joined: bool,
) -> Flow[None]:
    """Put a copy of an envelope into each queue, or into none; ``joined`` means within a caller's transaction.

    A single copy needs no transaction. Without a server there are no transactions, and the copies are put one by one.
    """
    at = broker.clock.now()
    copies = [make_bound_copy(envelope, queue, at) for queue in queues]
    make = partial(_insert_one_by_one, broker, copies, keyed, id_given=id_given)
    if len(copies) > 1 and not broker.serverless:
        size = broker.encoding.size(copies[0]) * len(copies)
        if size > MAX_TRANSACTION_BYTES:
            raise PayloadTooLarge(f"payload for {len(copies)} queues", size, MAX_TRANSACTION_BYTES)
        if keyed is None:
            raw = [Copy(copy["q"], copy["_id"], broker.encoding.raw(copy)) for copy in copies]
            make = partial(_insert_in_few, broker, raw, id_given=id_given)
        if not joined:
            make = partial(run_in_transaction, broker, make)
    _record_puts(broker, (yield from make()), envelope)


def publish_many(
    broker: BrokerContext,
    envelope: Document,
    fresh: Sequence[tuple[ObjectId, bytes]],
    queues: Sequence[str],
    *,
    id_given: bool,
    joined: bool = False,
) -> Flow[None]:
    """Put copies of many envelopes into each queue, all of them or none; the envelopes differ in id and payload only.

    They have a transaction of their own, unless they are ``joined`` to a caller's.
    """
    size = sum(len(wrapped) for _, wrapped in fresh)
    _check_transaction_size(len(fresh) * len(queues), size * len(queues), f"{len(fresh):,} for {len(queues)} queues")
    at = broker.clock.now()
    copies = [
        copy_for_queue(broker, {**envelope, "_id": id}, wrapped, queue, at) for queue in queues for id, wrapped in fresh
    ]
    if broker.serverless:
        documents = [copy.document for copy in copies]
        puts = yield from _insert_one_by_one(broker, documents, None, id_given=id_given)
    else:
        make = partial(_insert_in_few, broker, copies, id_given=id_given)
        puts = yield from make() if joined else run_in_transaction(broker, make)
    _record_puts(broker, puts, envelope)


def insert_joined(broker: BrokerContext, items: Sequence[Copy], envelope: Document, *, id_given: bool) -> Flow[None]:
    """Put many items into their queue within a caller's transaction, all of them or none.

    They differ from the ``envelope`` in id and payload only. An id that exists already must not abort the transaction.
    """
    size = sum(len(item.document.raw) for item in items)
    _check_transaction_size(len(items), size, f"{len(items):,}")
    _record_puts(broker, (yield from _insert_in_few(broker, items, id_given=id_given)), envelope)


def _check_transaction_size(number: int, size: int, what: str) -> None:
    for amount, limit, unit in ((number, MAX_COPIES, "copies"), (size, MAX_TRANSACTION_BYTES, "bytes")):
        if amount > limit:
            problem = f"{what} are {amount:,} {unit} in one transaction, and {limit:,} is"
            raise ArgumentInvalid("payloads", f"{problem} the limit; push them in parts")


def copy_for_queue(broker: BrokerContext, envelope: Document, wrapped: bytes, queue: str, at: datetime) -> Copy:
    """Return the copy of an envelope for a bound queue; the payload is ``{"payload": payload}`` in BSON."""
    head = make_bound_copy(envelope, queue, at)
    del head["payload"]
    raw = splice(bytes(broker.encoding.raw(head).raw), wrapped)
    return Copy(queue, head["_id"], broker.encoding.of_bytes(raw))


def _insert_one_by_one(
    broker: BrokerContext, copies: Sequence[Document], keyed: Keyed | None, *, id_given: bool
) -> Flow[list[_Put]]:
    puts = []
    for copy in copies:
        if keyed is None:
            id, new = copy["_id"], (yield from insert_item(broker, copy, id_given=id_given))
        else:
            id, new = yield from upsert_keyed(broker, copy, keyed, id_given=id_given)
        puts.append(_Put(copy["q"], id, new))
    return puts


def _insert_in_few(broker: BrokerContext, copies: Sequence[Copy], *, id_given: bool) -> Flow[list[_Put]]:
    """Put copies without a key in few commands; if their ids may exist already, the copies are upserted.

    A refused ``insert`` would abort the transaction. Raises ``DuplicateItem`` when another push used an id.
    """
    puts = []
    for chunk in chunks(copies, lambda copy: len(copy.document.raw)):
        new = set(range(len(chunk)))
        if id_given:
            requests = [("UpdateOne", _upsert(copy)) for copy in chunk]
            reply: Any = yield from Command("bulk_write", {"requests": requests, "ordered": True})
            new = set(reply.upserted_ids)
            yield from _check_same([copy for place, copy in enumerate(chunk) if place not in new], broker)
        else:
            documents = [copy.document for copy in chunk]
            yield from Command[Any]("insert_many", {"documents": documents, "ordered": True})
        puts += [_Put(copy.queue, copy.id, place in new) for place, copy in enumerate(chunk)]
    return puts


def _check_same(copies: Sequence[Copy], broker: BrokerContext) -> Flow[None]:
    """Refuse copies with ids that another push has used (``find``, only if there are any)."""
    if not copies:
        return
    wanted = {copy.id: copy.document for copy in copies}
    for document in (yield from find_pushed(broker, list(wanted))):
        if not is_same_push(document, wanted[document["_id"]]["into"]):
            raise id_taken_error(document, wanted[document["_id"]])


def _upsert(copy: Copy) -> dict[str, Any]:
    return {"filter": {"_id": copy.id}, "update": {"$setOnInsert": copy.document}, "upsert": True}


def _record_puts(broker: BrokerContext, puts: Sequence[_Put], envelope: Document) -> None:
    there: dict[tuple[str, bool], list[ObjectId]] = {}
    for queue, id, new in puts:
        there.setdefault((queue, new), []).append(id)
    for (queue, new), ids in there.items():
        single = ids[0] if len(ids) == 1 else None
        broker.record_put(queue, envelope["when"], envelope["priority"], number=len(ids), id=single, is_new=new)
