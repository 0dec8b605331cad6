# Generated from mongoq/core/wait/change_stream.py by scripts/unasync.py. Do not edit.
"""The change stream: one for all waiters of this process, read only while a caller waits.

It watches the items themselves, so no producer has to write anything for it. A busy process, whose consumers never find
their queues empty, has none. Its commands are plain ones, the same with every driver.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mongoq.core.base.queue_settings import CONTROL_PREFIX
from mongoq.core.base.topics import TOPICS_ID
from mongoq.core.command import Command, ReplyLost
from mongoq.core.state.context import BrokerContext
from mongoq.core.state.wait_queue import STREAM_LINGER_SECONDS
from mongoq.core.wait.change_stream import (
    FIRST_AWAIT_SECONDS,
    KILLED_CODES,
    MAX_PAUSE_SECONDS,
    NO_NEWS_PAUSE_SECONDS,
    PAUSE_SECONDS,
    UNSUPPORTED_CODES,
    Event,
    _code,
    _Ended,
    logger,
    stream_pipeline,
)
from mongoq.core_threads.base.find import close_cursor
from mongoq.core_threads.perform import perform, rest
from mongoq.data.item import id_key


def run_change_stream(broker: BrokerContext, number: int) -> None:
    """Read the stream until no caller waits any more; an error ends nothing but the stream."""
    reader = _Reader(broker, number)
    try:
        reader.run()
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

    def run(self) -> None:
        """Read until no caller has waited for a moment, or the stream cannot be read."""
        self._session = perform(Command("start", {}, target="sessions"))
        while self._is_needed():
            try:
                if self._cursor is None:
                    self._open()
                elif not self._registry.is_awaited():
                    if self._is_idle():
                        break
                elif self._registry.begin_reading(self._number, self._seconds):
                    self._read()
                else:
                    self._close()
            except Exception as error:
                if self._registry.deaf or not self._is_needed():
                    break
                self._recover(error)
        if not self._registry.closed:
            self._close()
        perform(Command("end", {"committed": False}, target="sessions", session=self._session))

    def _is_needed(self) -> bool:
        return not self._registry.closed and self._registry.running == self._number

    def _is_idle(self) -> bool:
        """Rest until a caller waits; return whether no caller did so all the time."""
        waiter_arrived = self._registry.reader
        waiter_arrived.was_set = False  # cleared before the check: a caller that arrives after it sets the event again
        if self._registry.is_awaited():
            return False
        self._registry.record_reader_asleep()
        rest(waiter_arrived, STREAM_LINGER_SECONDS)
        return not waiter_arrived.was_set and self._registry.stop()

    def _open(self) -> None:
        queues, token = self._registry.wanted_queues(), self._registry.token
        command = {"aggregate": self._broker.collection, "pipeline": stream_pipeline(queues, token), "cursor": {}}
        try:
            reply = self._send(command)
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

    def _read(self) -> None:
        more = {"getMore": self._cursor, "collection": self._broker.collection}
        reply = self._send({**more, "maxTimeMS": int(self._seconds * 1000)})
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
            rest(self._registry.ending, NO_NEWS_PAUSE_SECONDS)

    def _send(self, command: Mapping[str, Any]) -> Any:
        return perform(Command("command", {"command": command}, target="database", session=self._session))

    def _close(self) -> None:
        """Close the stream; it may be opened again at the same position."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            close_cursor(self._broker, cursor)

    def _recover(self, error: Exception) -> None:
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
        rest(self._registry.ending, self._pause)
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
