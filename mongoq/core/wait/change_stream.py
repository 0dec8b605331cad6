"""The change stream: one for all waiters of this process, read only while a caller waits.

It watches the items themselves, so no producer has to write anything for it. A busy process, whose consumers never find
their queues empty, has none. Its commands are plain ones, the same with every driver.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mongoq.core.base.find import close_cursor
from mongoq.core.base.queue_settings import CONTROL_PREFIX
from mongoq.core.base.topics import TOPICS_ID
from mongoq.core.command import Command, ReplyLost, own_error
from mongoq.core.perform import perform, rest
from mongoq.core.state.context import BrokerContext
from mongoq.core.state.wait_queue import STREAM_LINGER_SECONDS
from mongoq.data.item import id_key

logger = logging.getLogger("mongoq.listening")

FIRST_AWAIT_SECONDS = 0.05
"""Seconds that the server holds its first answers back; while nothing happens, twice as long each time.

So a stream that was just opened is soon opened again for queues whose waiters arrive a moment later.
"""
NO_NEWS_PAUSE_SECONDS = 0.005
"""Seconds between two answers without news for any waiter."""
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 5.0
"""Seconds before the stream is opened again after an error, at first and at most."""
KILLED_CODES = frozenset({43, 237})
"""Error codes of a missing cursor: it was killed, for example to cover more queues, or this is another server."""
UNSUPPORTED_CODES = frozenset({13, 59, 115, 303, 40324, 40573})
"""Error codes without change streams: a standalone server, another product with this protocol, or a missing right."""

Event = Mapping[str, Any]


def stream_pipeline(queues: frozenset[str], token: Any = None) -> list[dict[str, Any]]:
    """Return the stream of events that make items of these queues eligible, and of changes of any control document.

    No payload travels. The server looks up the document of an update, for its queue, only when all other conditions are
    met: they are decided before, and most of them while the log is read.
    """
    control = {"documentKey._id": {"$regex": f"^({CONTROL_PREFIX}|{TOPICS_ID}$)"}}
    names = {"$in": sorted(queues)}
    changed = "updateDescription.updatedFields"
    given_back = {  # a claim sets a token, which excludes it; a pop that is undone may restore an old one
        "operationType": "update",
        f"{changed}.when": {"$exists": True},
        "$or": [{f"{changed}.token": {"$exists": False}}, {"updateDescription.removedFields": "processed"}],
    }
    kinds = [{"operationType": {"$in": ["insert", "replace"]}}, given_back, control]
    nowhere_else = [{f"{changed}.q": {"$exists": False}}, {f"{changed}.q": names}]
    ours = [{"fullDocument.q": names}, {f"{changed}.q": names}, control]
    resume = {} if token is None else {"resumeAfter": token}
    fields = {
        "id": "$documentKey._id",
        "q": {"$ifNull": [f"${changed}.q", "$fullDocument.q"]},
        "when": _milliseconds({"$ifNull": [f"${changed}.when", "$fullDocument.when"]}),
    }
    return [
        {"$changeStream": {"fullDocument": "updateLookup", **resume}},
        {"$match": {"$and": [{"$or": kinds}, {"$or": nowhere_else}, {"$or": ours}]}},
        {"$project": fields},
    ]


def _milliseconds(date: Any) -> dict[str, Any]:
    """Return the expression of a date in milliseconds; another program's value without one becomes null."""
    return {"$convert": {"input": date, "to": "long", "onError": None, "onNull": None}}


async def run_change_stream(broker: BrokerContext, number: int) -> None:
    """Read the stream until no caller waits any more; an error ends nothing but the stream."""
    reader = _Reader(broker, number)
    try:
        await reader.run()
    except Exception as error:
        logger.debug("the change stream has ended: %r", error)
    finally:
        broker.registry.record_end(number)


class _Reader:
    """Opens the stream, reads it, and opens it again after errors: at the same position, or anew."""

    def __init__(self, broker: BrokerContext, number: int) -> None:
        self._broker = broker
        self._registry = broker.registry
        self._number = number
        self._session: Any = None
        self._cursor: int | None = None
        self._seconds = FIRST_AWAIT_SECONDS
        self._pause = PAUSE_SECONDS

    async def run(self) -> None:
        """Read until no caller has waited for a moment, or the stream cannot be read."""
        self._session = await perform(Command("start", {}, target="sessions"))
        while self._is_needed():
            try:
                if self._cursor is None:
                    await self._open()
                elif not self._registry.is_awaited():
                    if await self._is_idle():
                        break
                elif self._registry.begin_reading(self._number, self._seconds):
                    await self._read()
                else:
                    await self._close()
            except Exception as error:
                if self._registry.deaf or not self._is_needed():
                    break
                await self._recover(error)
        if not self._registry.closed:
            await self._close()
        await perform(Command("end", {"committed": False}, target="sessions", session=self._session))

    def _is_needed(self) -> bool:
        return not self._registry.closed and self._registry.running == self._number

    async def _is_idle(self) -> bool:
        """Rest until a caller waits; return whether no caller did so all the time."""
        waiter_arrived = self._registry.reader
        waiter_arrived.was_set = False  # cleared before the check: a caller that arrives after it sets the event again
        if self._registry.is_awaited():
            return False
        self._registry.record_reader_asleep()
        await rest(waiter_arrived, STREAM_LINGER_SECONDS)
        return not waiter_arrived.was_set and self._registry.stop()

    async def _open(self) -> None:
        queues, token = self._registry.wanted_queues(), self._registry.token
        command = {"aggregate": self._broker.collection, "pipeline": stream_pipeline(queues, token), "cursor": {}}
        try:
            reply = await self._send(command)
        except Exception as error:
            if _code(error) in UNSUPPORTED_CODES:
                self._registry.deaf = True
                logger.info("there is no change stream, and consumers look now and then: %r", error)
            raise
        cursor = reply["cursor"]
        if cursor["id"] == 0:
            raise _Ended
        self._cursor, self._seconds = cursor["id"], FIRST_AWAIT_SECONDS
        if self._registry.record_answer(self._number, cursor["postBatchResumeToken"]):
            self._registry.record_open(cursor["id"], queues, lossless=token is not None)
            self._deliver(cursor["firstBatch"])

    async def _read(self) -> None:
        more = {"getMore": self._cursor, "collection": self._broker.collection}
        reply = await self._send({**more, "maxTimeMS": int(self._seconds * 1000)})
        cursor = reply["cursor"]
        if not self._registry.record_answer(self._number, cursor["postBatchResumeToken"]):
            return
        self._pause = PAUSE_SECONDS
        events = cursor["nextBatch"]
        is_news = self._deliver(events)
        if cursor["id"] == 0:
            raise _Ended
        if not events:
            self._seconds = min(self._seconds * 2, self._registry.patience)
        elif not is_news:
            await rest(self._registry.ending, NO_NEWS_PAUSE_SECONDS)

    async def _send(self, command: Mapping[str, Any]) -> Any:
        return await perform(Command("command", {"command": command}, target="database", session=self._session))

    async def _close(self) -> None:
        """Close the stream; it may be opened again at the same position."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            await close_cursor(self._broker, cursor)

    async def _recover(self, error: Exception) -> None:
        """Prepare to open the stream again, at the same position unless the server refuses that."""
        was_open, self._cursor = self._cursor is not None, None
        is_refused = not isinstance(error, ReplyLost) and _code(error) not in {None, *KILLED_CODES}
        is_first_refusal = is_refused and self._registry.token is None and self._pause == PAUSE_SECONDS
        self._registry.silence()
        if is_refused:
            self._registry.token = None  # the server may refuse to resume there
        if was_open or is_first_refusal:
            # Nothing wakes waiters now, and those asleep rely on the stream: they ask, and go on by polling.
            self._registry.alarm()
        logger.debug("the change stream is opened again in %s seconds: %r", self._pause, error)
        await rest(self._registry.ending, self._pause)
        self._pause = min(self._pause * 2, MAX_PAUSE_SECONDS)

    def _deliver(self, events: Sequence[Event]) -> bool:
        """Pass the events to the wait queues; return whether any of them was news."""
        is_news, now = False, self._broker.clock.now()
        queues = set()
        for event in events:
            queue, id, when = event.get("q"), event["id"], event.get("when")
            if id == TOPICS_ID:
                self._broker.topics.changed_at = time.monotonic()
                self._broker.calm_until = -math.inf
                is_news = True
            elif isinstance(id, str) and id.startswith(CONTROL_PREFIX):
                # The next waiter reads the control document of the queue again; one is woken if there is any.
                name = id.removeprefix(CONTROL_PREFIX)
                if (state := self._broker.states.get(name)) is not None:
                    state.changed_at = time.monotonic()
                    state.calm_until = -math.inf
                self._broker.wake(name)
                is_news = True
            elif isinstance(queue, str):
                queues.add(queue)
                if (wait_queue := self._registry.wait_queues.get(queue)) is not None:
                    due = 0.0 if when is None else when / 1000 - now.timestamp()
                    is_news |= wait_queue.heard(due, (id_key(id), when))
        if queues - self._registry.wanted_queues():  # the open stream still covers queues without waiters
            self._registry.narrow()
        return is_news


class _Ended(Exception):
    """The stream has ended: the collection was dropped or renamed."""

    code = -1


def _code(error: Exception) -> Any:
    return getattr(own_error(error), "code", None)
