"""A driver that answers from a script: what flows send, and what they make of each answer, without a server."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import bson
from bson import Int64, ObjectId
from bson.raw_bson import RawBSONDocument

from mongoq.model.clock import VirtualClock
from mongoq.model.encoding.codec import Codec, Encoding, codec_options
from mongoq.model.item import Item
from mongoq.model.settings import queue_options
from mongoq.protocol.flow import Command, Flow, ReplyLost
from mongoq.protocol.state.context import BrokerContext, QueueContext

NOW = datetime(2024, 1, 1, tzinfo=UTC)
ID = ObjectId("65920080aaaaaaaaaaaaaaaa")
TOKEN = ObjectId("65920080bbbbbbbbbbbbbbbb")
LOST = ReplyLost(ConnectionError("the connection broke"))


def context(name: str = "orders", *, model: Any = None, serverless: bool = False, **options: Any) -> QueueContext[Any]:
    """A queue whose broker has been made ready, on a clock that stands still."""
    encoding = Encoding(codec_options())
    broker = BrokerContext("app.mongoq", VirtualClock(NOW), encoding, serverless, checked=True, indexed=True)
    queue = QueueContext(broker, queue_options(name, **options), Codec(broker.encoding, model))
    queue.saved = True
    queue.state.store(paused=False)
    broker.topics.store({}, time.monotonic() + 3600)  # fresh, however slow the machine
    return queue


def reserved_item(**changes: Any) -> Item[Any]:
    """An item as ``reserve`` returns it, from an envelope with these changes."""
    due = changes.pop("due", NOW - timedelta(seconds=5))
    document = {
        "_id": ID,
        "q": "orders",
        "payload": {"n": 1},
        "when": NOW + timedelta(seconds=30),
        "priority": 0,
        "attempts": 1,
        "reserved": True,
        "token": TOKEN,
        "by": "host:1:aa",
    }
    return Item({**document, **changes}, document["payload"], NOW, "app.mongoq", due)


def matched(count: int) -> Any:
    """The driver's result of an update or a delete."""
    return SimpleNamespace(matched_count=count, deleted_count=count)


def found(*documents: Any, cursor: int = 0) -> Any:
    """The server's reply to ``find``."""
    return {"cursor": {"firstBatch": list(documents), "id": cursor}}


def found_raw(*documents: Any) -> Any:
    """The same, left as its bytes."""
    return RawBSONDocument(bson.encode({"cursor": {"firstBatch": list(documents), "id": Int64(0), "ns": "app.mongoq"}}))


def _parsed(command: Command[Any], reply: Any) -> Any:
    return reply if command.parse is None else command.parse(reply)


def play(flow: Flow[Any], replies: Iterable[Any]) -> tuple[list[Command[Any]], Any]:
    """Run a flow on scripted replies; return the commands it sent, and its result or the error it raised."""
    script, commands, outcome = deque(replies), [], None
    try:
        request = next(flow)
        while True:
            assert isinstance(request, Command)
            commands.append(request)
            assert script, f"no reply was scripted for {request}"
            reply = script.popleft()
            request = flow.throw(reply) if isinstance(reply, Exception) else flow.send(_parsed(request, reply))
    except StopIteration as stop:
        outcome = stop.value
    except Exception as error:
        outcome = error
    assert not script, f"replies left over: {script}"
    return commands, outcome
