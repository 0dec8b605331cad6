# Generated from mongoq/core/wait/wait.py by scripts/unasync.py. Do not edit.
"""Wait for an item: ask once, then ask again only when an event makes it worthwhile.

These events are: a push or another operation of this process, the change stream, the due time
of the next item, and now and then a poll, as a safety net.

There is one change stream for all waiters of this process, read only while a caller waits. It watches the items
themselves, so no producer has to write anything for it. A busy process, whose consumers never find their queues empty,
has none. Its commands are plain ones, the same with every driver.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from mongoq.core.base.first_due import first_due_command, first_due_pipeline
from mongoq.core.base.queue_settings import REFRESH_SECONDS
from mongoq.core.command import Command, ReplyLost, Waiter
from mongoq.core.state.context import BrokerContext, QueueContext, event_key
from mongoq.core.state.wait_queue import STREAM_LINGER_SECONDS, WaitQueue
from mongoq.core.wait.wait import (
    FIRST_AWAIT_SECONDS,
    KILLED_CODES,
    MAX_PAUSE_SECONDS,
    MAX_REST_SECONDS,
    NO_NEWS_PAUSE_SECONDS,
    PAUSE_SECONDS,
    TRUST_SECONDS,
    UNSUPPORTED_CODES,
    Event,
    R,
    _code,
    _Ended,
    listening_logger,
    logger,
    stream_pipeline,
)
from mongoq.core_threads.base.bootstrap import ensure_broker_ready
from mongoq.core_threads.base.find import aggregate_all, close_cursor, find_one
from mongoq.core_threads.base.queue_settings import mark_used
from mongoq.core_threads.perform import perform, rest, run_beside, sleep
from mongoq.data.indexes import CONTROL_PREFIX, TOPICS_ID
from mongoq.data.item import id_key


def find_next_due(context: QueueContext[Any]) -> datetime | None:
    """Find when the next item is, or was, due: one index lookup for each priority in use.

    ``aggregate`` with ``$sort`` and ``$first``, which the server answers by a DISTINCT_SCAN.
    """
    ensure_broker_ready(context.broker, write=False)
    groups: Any = perform(first_due_command(context.name))
    return min((group["when"] for group in groups), default=None)


def is_drained(context: QueueContext[Any], lease: timedelta, *, keeps_scheduled: bool) -> bool:
    """Return whether a queue is empty (``find``).

    With ``keeps_scheduled`` scheduled items may be left in it: none is ready, or reserved for up to ``lease``.
    """
    if not keeps_scheduled:
        return (find_next_due(context)) is None
    ensure_broker_ready(context.broker, write=False)
    now = context.broker.clock.now()
    filter = {"q": context.name, "when": {"$lte": now + lease}, "$or": [{"when": {"$lte": now}}, {"reserved": True}]}
    return (find_one(context.broker, filter, {"_id": 1})) is None


def find_next_dues(broker: BrokerContext, queues: Sequence[str]) -> dict[str, datetime]:
    """Find the next due times of many queues in one ``aggregate``, by ``$unionWith``; empty queues are left out."""
    ensure_broker_ready(broker, write=False)
    parts = [[*first_due_pipeline(queue), {"$set": {"_id": {"$literal": queue}}}] for queue in queues]
    groups = aggregate_all(broker, parts)
    whens: dict[str, datetime] = {}
    for group in groups:
        queue, when = group["_id"], group["when"]
        whens[queue] = min(when, whens[queue]) if queue in whens else when
    return whens


def wait_for_item(
    context: QueueContext[Any],
    attempt: Callable[[], R | None],
    patience: float,
    *,
    over: Callable[[], bool] = lambda: False,
) -> R | None:
    """Try until an item is claimed or the time is up; ``over`` ends the wait of a caller that is woken (by ``wake``).

    No item is missed in between: a caller that finds nothing is in the wait queue by then, and when the stream opens
    later than that, it lets every waiter try again.
    """
    deadline = math.inf if patience == math.inf else time.monotonic() + patience
    wait_queue, waiter = context.broker.registry.enter(context.name, patient=patience >= TRUST_SECONDS)
    try:
        while True:
            result = _take_turn(context, wait_queue, waiter, attempt)
            remaining = deadline - time.monotonic()
            if result is not None or remaining <= 0 or over():
                return result
            if time.monotonic() >= context.state.used_until:
                mark_used(context.broker, [context.name])
            _ensure_stream(context)
            seconds = min(wait_queue.begin_sleep(waiter), remaining, MAX_REST_SECONDS)
            if seconds > 0:
                rest(waiter, seconds)
    finally:
        wait_queue.leave(waiter)


def _take_turn(
    context: QueueContext[Any], wait_queue: WaitQueue, waiter: Waiter, attempt: Callable[[], R | None]
) -> R | None:
    """Do the task of this waiter's turn: nothing, a read of the next due time, or an attempt to claim."""
    turn = wait_queue.turn(waiter)
    if turn is None:
        return None
    if turn == "ask" and (pause := wait_queue.seconds_to_hold_back()):
        sleep(pause)  # one claim then takes all items that arrive meanwhile
    changes = wait_queue.begin(waiter)
    if turn == "look":
        # Without a stream, one read serves other queues as well. The change counts are taken before the read: a push
        # during it makes that queue's answer outdated.
        others = [(other, other.changes) for other in context.broker.registry.overdue() if other is not wait_queue]
        whens = find_next_dues(context.broker, [wait_queue.name, *(other.name for other, _ in others)])
        now = context.broker.clock.now()
        dues = {queue: (when - now).total_seconds() for queue, when in whens.items()}
        for other, number in others:
            other.record_poll(number, dues.get(other.name, math.inf))
        if (due := dues.get(wait_queue.name, math.inf)) > 0:
            wait_queue.record_nothing(waiter, changes, due)
            return None
    result = attempt()
    if result is not None:
        wait_queue.record_found()
        items = result if isinstance(result, list) else result.items  # type: ignore[attr-defined]  # a batch claim
        wait_queue.took([event_key(item.id, item.due) for item in items if item.due is not None])
        return result
    seconds: float | None = math.inf
    if context.state.paused and not wait_queue.is_next_poll_soon():
        # The stream delivers a resumption, unless that came after the read of the settings, and before the stream.
        registry = context.broker.registry
        if registry.watches(context.name) and context.state.read_at <= registry.since:
            seconds = REFRESH_SECONDS
    elif not wait_queue.is_next_poll_soon():
        seconds = wait_queue.seconds_until_due(changes)
    if seconds is None:
        when = find_next_due(context)
        seconds = math.inf if when is None else (when - context.broker.clock.now()).total_seconds()
    wait_queue.record_nothing(waiter, changes, seconds)
    return None


def _ensure_stream(context: QueueContext[Any]) -> None:
    """Make sure that there is a stream, or will be, that covers this queue."""
    registry, cursor = context.broker.registry, 0
    reader = registry.start()
    if not reader:
        reader, cursor = registry.widen(context.name)
    if reader:
        try:
            run_beside(partial(run_change_stream, context.broker, reader), partial(registry.record_end, reader))
        except RuntimeError:  # no thread can be started now
            registry.record_end(reader)
    if cursor:
        try:
            close_cursor(context.broker, cursor)
        except Exception as error:
            logger.debug("a change stream is left to the server to close: %r", error)


# --- the change stream ---------------------------------------------------------------------------


def run_change_stream(broker: BrokerContext, number: int) -> None:
    """Read the stream until no caller waits any more; an error ends nothing but the stream."""
    reader = _Reader(broker, number)
    try:
        reader.run()
    except Exception as error:
        listening_logger.debug("the change stream has ended: %r", error)
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
                    waiter_arrived = self._registry.reader
                    waiter_arrived.was_set = False  # before the check: a caller that arrives after it sets it again
                    if self._registry.is_awaited():
                        continue
                    self._registry.record_reader_asleep()
                    rest(waiter_arrived, STREAM_LINGER_SECONDS)
                    if not waiter_arrived.was_set and self._registry.stop():
                        break
                elif self._registry.begin_reading(self._number, self._seconds):
                    self._read()
                else:
                    self._close()
            except Exception as error:
                if self._registry.deaf or not self._is_needed():
                    break
                # It is opened again, at the same position unless the server refuses that.
                was_open, self._cursor = self._cursor is not None, None
                is_refused = not isinstance(error, ReplyLost) and _code(error) not in {None, *KILLED_CODES}
                is_first_refusal = is_refused and self._registry.token is None and self._pause == PAUSE_SECONDS
                self._registry.silence()
                if is_refused:
                    self._registry.token = None  # the server may refuse to resume there
                if was_open or is_first_refusal:
                    # Nothing wakes waiters now, and those asleep rely on the stream: they ask, and go on by polling.
                    self._registry.alarm()
                listening_logger.debug("the change stream is opened again in %s seconds: %r", self._pause, error)
                rest(self._registry.ending, self._pause)
                self._pause = min(self._pause * 2, MAX_PAUSE_SECONDS)
        if not self._registry.closed:
            self._close()
        perform(Command("end", {"committed": False}, target="sessions", session=self._session))

    def _is_needed(self) -> bool:
        return not self._registry.closed and self._registry.running == self._number

    def _open(self) -> None:
        queues, token = self._registry.wanted_queues(), self._registry.token
        command = {"aggregate": self._broker.collection, "pipeline": stream_pipeline(queues, token), "cursor": {}}
        try:
            reply = self._send(command)
        except Exception as error:
            if _code(error) in UNSUPPORTED_CODES:
                self._registry.deaf = True
                listening_logger.info("there is no change stream, and consumers look now and then: %r", error)
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
