# Generated from mongoq/core/settle/by_token.py by scripts/unasync.py. Do not edit.
"""Items by id and token alone: leases of workers, and callers that know only the claimed ids and their fence.

Items under one token: many items by their ids, extended or read, and none of them may be missed. A caller that reads
the items of a claim and misses one would have it settled unread. A read may miss one: a server that was elected a
moment ago, or that does not know yet that it was voted out, shows an older state. An update does not, since it waits
for the majority. So an item that a read has not found is checked by an update that changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from bson import ObjectId

from mongoq.core.base.statements import Statement
from mongoq.core.command import MAX_COMMAND_ITEMS, Command, number_matched
from mongoq.core.settle.by_token import (
    MAX_READS,
    READ_PAUSE_SECONDS,
    UNREAD_FIELDS,
    ExtendedItems,
    FencedItem,
    SettledByToken,
    cut_ids,
    update_many_command,
)
from mongoq.core.settle.move import make_move
from mongoq.core.settle.settle import make_commit
from mongoq.core.settle.settlement import Batch, Wanted, make_statement
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads.base.bootstrap import ensure_broker_ready
from mongoq.core_threads.base.find import find_few, find_reply
from mongoq.core_threads.base.queue_settings import ensure_ready
from mongoq.core_threads.base.retry import retry_until_reply
from mongoq.core_threads.perform import perform, sleep
from mongoq.core_threads.settle.exchange import read_states
from mongoq.core_threads.settle.send import settle_all
from mongoq.data.envelope import error_document
from mongoq.data.item import Document, Item, id_key
from mongoq.data.settings import queue_options
from mongoq.errors import ReservationLost, ServerUnavailable


def extend_held(broker: BrokerContext, token: ObjectId, ids: Sequence[Any], lease: timedelta) -> list[Any]:
    """Extend the leases of items to ``lease`` from now, and return the ids that the token holds, in their order.

    This includes leases that ran out, as long as no other consumer has claimed the items (``update`` of many). The
    command is sent again when the reply is lost.
    """
    held_ids: list[Any] = []
    for chunk in cut_ids(ids):
        if (_update_held(token, chunk, {"$max": {"when": broker.clock.now() + lease}})) == len(chunk):
            held_ids += chunk
        else:
            documents = read_held_documents(broker, token, chunk, {"_id": 1})
            held_ids += [document["_id"] for document in documents or ()]
    return held_ids


def read_held_documents(
    broker: BrokerContext, token: ObjectId, ids: Sequence[Any], projection: Mapping[str, Any]
) -> list[dict[str, Any]] | None:
    """Read the items that the token holds, in the order of the ids, with majority read concern (``find``).

    ``None`` when they exceed the 16 MB of one reply: ask for fewer.

    Raises:
        ServerUnavailable: the server has items that it does not show, for ten seconds.
    """
    rest = {id_key(id): id for id in ids}
    documents_by_id: dict[Any, dict[str, Any]] = {}
    for _ in range(MAX_READS):
        filter = {"_id": {"$in": list(rest.values())}, "token": token}
        documents, complete = find_reply(broker, filter, len(rest), projection)
        if not complete:
            return None
        for document in documents:
            key = id_key(document["_id"])
            documents_by_id[key] = document
            del rest[key]
        if not rest or not (_update_held(token, list(rest.values()), {"$set": {"reserved": True}})):
            return [documents_by_id[key] for key in map(id_key, ids) if key in documents_by_id]
        sleep(READ_PAUSE_SECONDS)
    raise ServerUnavailable("the server does not show items that it holds: run it again when the replica set is well")


def _update_held(token: ObjectId, ids: Sequence[Any], update: Mapping[str, Any]) -> int:
    return retry_until_reply(update_many_command({"_id": {"$in": list(ids)}, "token": token}, update))


# --- leases of workers ---------------------------------------------------------------------------


def extend_leases(
    broker: BrokerContext, wanted: Sequence[ExtendedItems]
) -> tuple[list[datetime], set[tuple[Any, Any]]]:
    """Extend leases (``bulkWrite`` of ``update`` of many); return their new ends, and the lost items.

    Lost items are named by ``id_key`` and token: another consumer has them, or they were settled meanwhile. The command
    is sent again when the reply is lost, which is safe: it sets the same values. A lease that a handler has made longer
    stays so.
    """
    now = broker.clock.now()
    ends = [now + extension.lease for extension in wanted]
    requests = [
        make_statement({"token": extension.token}, ids, {"$max": {"when": until}})
        for extension, until in zip(wanted, ends, strict=True)
        for ids in cut_ids(extension.ids)
    ]
    arguments = {"requests": requests, "ordered": False}
    command: Command[int] = Command("bulk_write", arguments, number_matched, resolved=True)
    matched = retry_until_reply(command)
    reservations = [(id, extension.token) for extension in wanted for id in extension.ids]
    if matched == len(reservations):
        return ends, set()
    # The present holders of all items are read together, since leases not read yet are not extended meanwhile.
    tokens: dict[Any, Any] = {}
    for ids in cut_ids([id for id, _ in reservations]):
        states = read_states(broker, ids)
        tokens.update((key, document.get("token")) for key, document in states.items())
    return ends, {(id_key(id), token) for id, token in reservations if tokens.get(id_key(id)) != token}


def record_timeout(context: QueueContext[Any], items: Sequence[Item[Any]], error: TimeoutError) -> None:
    """Keep an error on the items of a run that took too long (``bulkWrite``, fenced); their leases stay as they are.

    An item that ran by itself loses the mark of its batch: it took too long, and no neighbour of it, so that the next
    claim buries it when its retries are used up. A crash before it gives that item one run more.
    """
    update: dict[str, Any] = {"$set": {"error": error_document(error, context.broker.clock.now())}}
    if len(items) == 1:
        update["$unset"] = {"batch": ""}
    tokens: dict[Any, list[Any]] = {}
    for item in items:
        tokens.setdefault(item.token, []).append(item.id)
    requests: list[Statement] = [make_statement({"token": token}, ids, update) for token, ids in tokens.items()]
    perform(Command("bulk_write", {"requests": requests, "ordered": False}))


# --- settled by token ----------------------------------------------------------------------------


def settle_held(broker: BrokerContext, fenced_items: Sequence[FencedItem]) -> SettledByToken:
    """Commit and move items, each once, in the queues that hold them, by the settings of these queues.

    Each item is read first (``find`` of 10,000 at a time, without payloads). An item that is not under its token any
    more is lost. Its history and id fields decide how it is settled. Then one ``bulkWrite`` settles the items of a
    queue. All are tried. A crash in between leaves the rest under their tokens: settle all again.
    """
    result = SettledByToken()
    ensure_broker_ready(broker, write=True)
    for start in range(0, len(fenced_items), MAX_COMMAND_ITEMS):
        some = fenced_items[start : start + MAX_COMMAND_ITEMS]
        filter = {"_id": {"$in": [item.id for item in some]}, "token": {"$exists": True}}
        # A move that replaces the headers keeps the trace in them.
        reads_headers = any(item.move is not None and item.move.sets_headers for item in some)
        unread = {name: 0 for name in UNREAD_FIELDS if not (reads_headers and name == "headers")}
        found = find_few(broker, filter, [("_id", 1)], len(some), projection=unread)
        documents = {document["_id"].binary: document for document in found}
        queues: dict[str, list[tuple[FencedItem, Document]]] = {}
        for item in some:
            document = documents.get(item.id.binary)
            if document is None or document.get("token") != item.token:
                result.lost.append(item.id)
            else:
                queues.setdefault(document["q"], []).append((item, document))
        result.queues |= queues.keys()
        for queue, fenced in queues.items():
            context = QueueContext(broker, queue_options(queue), broker.untyped)
            ensure_ready(context)
            batch = Batch(broker.clock)
            wanted: list[Wanted] = []
            for (_, _, move), document in fenced:
                stored = context.raw_item(document, batch.now)
                make = make_commit if move is None else partial(make_move, checked=move)
                wanted.append((stored, make(context, stored, batch)))
            settled = settle_all(wanted)
            result.done += len(settled.done)
            for stored, _ in wanted:
                error = settled.failed.get(id_key(stored.id))
                if isinstance(error, ReservationLost):
                    result.lost.append(stored.id)
                elif error is not None:
                    result.failed[stored.id] = error
    return result
