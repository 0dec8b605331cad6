"""Items under one token: many items by their ids, extended or read, and none of them may be missed.

A caller that reads the items of a claim and misses one would have it settled unread. A read may miss one: a server that
was elected a moment ago, or that does not know yet that it was voted out, shows an older state. An update does not,
since it waits for the majority. So an item that a read has not found is checked by an update that changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from bson import ObjectId

from mongoq.errors import ServerUnavailable
from mongoq.model.item import id_key
from mongoq.protocol.base.find import find_reply
from mongoq.protocol.flow.chunking import IDS
from mongoq.protocol.flow.commands import Command, Flow, Wait, number_matched, persisted
from mongoq.protocol.state.context import BrokerContext

__all__ = ["cut_ids", "extend_and_list_held", "extend_held", "read_held_documents", "update_many_command"]

MAX_READS = 100
READ_PAUSE_SECONDS = 0.1
"""Seconds between reads of items that are certainly there."""


def cut_ids(ids: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Cut ids into parts of one command each."""
    for start in range(0, len(ids), IDS):
        yield ids[start : start + IDS]


def extend_held(broker: BrokerContext, token: ObjectId, ids: Sequence[Any], lease: timedelta) -> Flow[int]:
    """Extend the leases of items to ``lease`` from now, and return how many the token holds (``update`` of many).

    This includes leases that ran out, as long as no other consumer has claimed the items. The command is sent again
    when the reply is lost.
    """
    return (yield from _update_held(token, ids, {"$max": {"when": broker.clock.now() + lease}}))


def extend_and_list_held(
    broker: BrokerContext, token: ObjectId, ids: Sequence[Any], lease: timedelta
) -> Flow[list[Any]]:
    """Extend the leases of any number of items, and return the ids that the token holds, in their order."""
    held: list[Any] = []
    for chunk in cut_ids(ids):
        if (yield from extend_held(broker, token, chunk, lease)) == len(chunk):
            held += chunk
        else:
            found = yield from read_held_documents(broker, token, chunk, {"_id": 1})
            held += [document["_id"] for document in found or ()]
    return held


def read_held_documents(
    broker: BrokerContext, token: ObjectId, ids: Sequence[Any], projection: Mapping[str, Any]
) -> Flow[list[dict[str, Any]] | None]:
    """Read the items that the token holds, in the order of the ids, with majority read concern (``find``).

    ``None`` when they exceed the 16 MB of one reply: ask for fewer.

    Raises:
        ServerUnavailable: the server has items that it does not show, for ten seconds.
    """
    rest = {id_key(id): id for id in ids}
    found: dict[Any, dict[str, Any]] = {}
    for _ in range(MAX_READS):
        filter = {"_id": {"$in": list(rest.values())}, "token": token}
        documents, complete = yield from find_reply(broker, filter, len(rest), projection)
        if not complete:
            return None
        for document in documents:
            key = id_key(document["_id"])
            found[key] = document
            del rest[key]
        if not rest or not (yield from _update_held(token, list(rest.values()), {"$set": {"reserved": True}})):
            return [found[key] for key in map(id_key, ids) if key in found]
        yield from Wait(READ_PAUSE_SECONDS)
    raise ServerUnavailable("the server does not show items that it holds: run it again when the replica set is well")


def _update_held(token: ObjectId, ids: Sequence[Any], update: Mapping[str, Any]) -> Flow[int]:
    filter = {"_id": {"$in": list(ids)}, "token": token}
    found, _ = yield from persisted(update_many_command(filter, update).__iter__)
    return found


def update_many_command(filter: Mapping[str, Any], update: Any) -> Command[int]:
    """Return an update of many that may be sent again, since it is fenced and finds nothing twice; it counts them."""
    return Command("update_many", {"filter": filter, "update": update}, number_matched, resolved=True)
