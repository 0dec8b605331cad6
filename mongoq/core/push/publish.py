"""Publications: an item pushed to a topic is copied into each bound queue, all in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.core.base.queue_settings import ensure_ready, mark_ordered
from mongoq.core.base.transaction import run_atomic, run_in_transaction
from mongoq.core.command import Command, chunks
from mongoq.core.perform import perform
from mongoq.core.push.insert import find_pushed, id_taken_error, insert_item, upsert_keyed
from mongoq.core.sequence.places import Promoted, enter_all, record_new, record_promoted, with_place
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.data.copies import make_bound_copy
from mongoq.data.envelope import Document, is_same_push, splice
from mongoq.data.push_options import Keyed
from mongoq.data.sequence import topic_problem
from mongoq.errors import ArgumentInvalid, PayloadTooLarge

MAX_COPIES = 30_000
"""Copies that one transaction writes, at most."""
MAX_TRANSACTION_BYTES = 32 * 1024 * 1024
"""Bytes that one transaction writes, at most: the server keeps all of them in its cache until the end."""


class Copy(NamedTuple):
    """One copy in the form to send."""

    queue: str
    id: ObjectId
    document: RawBSONDocument


Put = tuple[str, ObjectId, bool]
"""Queue and id of an item of a publication, and whether it is new there."""


async def push_keyed(
    broker: BrokerContext, envelope: Document, queues: Sequence[str], keyed: Keyed, *, id_given: bool, joined: bool
) -> ObjectId:
    """Put an item under a key into its queue, or a copy into each of the ``queues`` of a topic, in all of them or none.

    Returns the id of the live item of that key.
    """
    at = broker.clock.now()
    bound: list[Document] = [make_bound_copy(envelope, queue, at) for queue in queues]
    copies = bound or [envelope]

    async def put_each() -> list[Put]:
        return [(copy["q"], *(await upsert_keyed(broker, copy, keyed, id_given=id_given))) for copy in copies]

    is_several = len(copies) > 1 and not broker.serverless
    if is_several:
        _check_transaction_size(1, len(copies), broker.encoding.size(copies[0]) * len(copies))
    puts = await (run_in_transaction(broker, put_each) if is_several and not joined else put_each())
    _record_puts(broker, puts, envelope)
    return puts[0][1]


def _check_transaction_size(items: int, queues: int, size: int) -> None:
    if items == 1 and size > MAX_TRANSACTION_BYTES:
        raise PayloadTooLarge(f"payload for {queues} queues", size, MAX_TRANSACTION_BYTES)
    what = f"{items:,}" if queues == 1 else f"{items:,} for {queues} queues"
    for amount, limit, unit in ((items * queues, MAX_COPIES, "copies"), (size, MAX_TRANSACTION_BYTES, "bytes")):
        if amount > limit:
            problem = f"{what} are {amount:,} {unit} in one transaction, and {limit:,} is"
            raise ArgumentInvalid("payloads", f"{problem} the limit; push them in parts")


def copy_for_queue(broker: BrokerContext, envelope: Document, wrapped: bytes, queue: str, at: datetime) -> Copy:
    """Return the copy of an envelope for a bound queue; the payload is ``{"payload": payload}`` in BSON."""
    head = make_bound_copy(envelope, queue, at)
    del head["payload"]
    raw = splice(bytes(broker.encoding.raw(head).raw), wrapped)
    return Copy(queue, head["_id"], broker.encoding.of_bytes(raw))


async def insert_copies(
    broker: BrokerContext,
    copies: Sequence[Copy],
    envelope: Document,
    pushes: int,
    size: int,
    *,
    id_given: bool,
    joined: bool,
) -> None:
    """Put all copies of so many pushes or none, in one transaction: a caller's (``joined``) or their own.

    They differ from the ``envelope`` in id, payload and queue only, and have ``size`` bytes in all. A single copy needs
    no transaction. Without a server there are no transactions, and copies are put one by one. An id that exists already
    must not abort a caller's transaction; ``DuplicateItem`` when another push used it.
    """
    if len(copies) > 1 and not (broker.serverless and pushes == 1):
        _check_transaction_size(pushes, len(copies) // pushes, size)

    async def insert_in_few() -> list[Put]:
        """Put copies in few commands; if their ids may exist, upserts, as a refused ``insert`` aborts a transaction."""
        puts: list[Put] = []
        for chunk in chunks(copies, lambda copy: len(copy.document.raw)):
            new = set(range(len(chunk)))
            if id_given:
                requests: list[Any] = []
                for copy in chunk:
                    update = {"$setOnInsert": copy.document}
                    requests.append(("UpdateOne", {"filter": {"_id": copy.id}, "update": update, "upsert": True}))
                reply: Any = await perform(Command("bulk_write", {"requests": requests, "ordered": True}))
                new = set(reply.upserted_ids)
                stored = {copy.id: copy.document for place, copy in enumerate(chunk) if place not in new}
                for document in (await find_pushed(broker, list(stored))) if stored else ():
                    if not is_same_push(document, stored[document["_id"]]["into"]):
                        raise id_taken_error(document, stored[document["_id"]])
            else:
                documents = [copy.document for copy in chunk]
                await perform(Command[Any]("insert_many", {"documents": documents, "ordered": True}))
            puts += [(copy.queue, copy.id, place in new) for place, copy in enumerate(chunk)]
        return puts

    puts: list[Put] = []
    if broker.serverless or (len(copies) == 1 and not joined):
        for copy in copies:
            puts.append((copy.queue, copy.id, (await insert_item(broker, copy.document, id_given=id_given))))
    else:
        puts = await (insert_in_few() if joined else run_in_transaction(broker, insert_in_few))
    _record_puts(broker, puts, envelope)


def _record_puts(broker: BrokerContext, puts: Sequence[Put], envelope: Document) -> None:
    there: dict[tuple[str, bool], list[ObjectId]] = {}
    for queue, id, new in puts:
        there.setdefault((queue, new), []).append(id)
    for (queue, new), ids in there.items():
        single = ids[0] if len(ids) == 1 else None
        broker.record_put(queue, envelope["when"], envelope["priority"], number=len(ids), id=single, is_new=new)


# --- sequences


Ordered = tuple[Mapping[str, Any], "str | None"]
"""The envelope of an item, and its sequence if it has one."""


async def push_in_order(context: QueueContext[Any], pushes: Sequence[Ordered], *, id_given: bool, joined: bool) -> None:
    """Insert items at the ends of their sequences, all of them or none, in the order given.

    In one transaction, a caller's if there is one (``joined``): the control documents of the sequences are read and
    written (``find``, ``update``), and the items inserted. A crash before its commit leaves nothing.

    Raises:
        ArgumentInvalid: the queue is a topic with bound queues.
        TransactionsUnavailable: the server is no replica set.
        DuplicateItem: a push to another queue has used one of the ids.
    """
    if context.broker.topics.bound.get(context.name):
        raise ArgumentInvalid("sequence", topic_problem(context.name))
    await ensure_ready(context, fresh=not joined)
    await mark_ordered(context, joined=joined)

    async def insert_new() -> tuple[list[Mapping[str, Any]], list[Promoted]]:
        """Insert the items that are not stored yet; return them, and older items promoted."""
        envelopes = {envelope["_id"]: envelope for envelope, _ in pushes}
        for document in (await find_pushed(context.broker, list(envelopes))) if id_given else ():
            envelope = envelopes.pop(document["_id"])
            if not is_same_push(document, context.name):
                raise id_taken_error(document, envelope)
        new = [(envelope, sequence) for envelope, sequence in pushes if envelope["_id"] in envelopes]
        entries = await enter_all(context.broker, [(context.name, each) for _, each in new if each is not None])
        documents = [
            envelope if sequence is None else with_place(envelope, entries[context.name, sequence])
            for envelope, sequence in new
        ]
        if len(documents) == 1:
            await perform(Command[Any]("insert_one", {"document": documents[0]}))
        elif documents:
            await perform(Command[Any]("insert_many", {"documents": documents, "ordered": True}))
        return documents, [item for entry in entries.values() for item in entry.promoted]

    documents, promoted = await run_atomic(context.broker, insert_new, joined=joined)
    for document in documents:
        record_new(context.broker, document)
    record_promoted(context.broker, promoted)
