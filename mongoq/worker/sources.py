"""Sources in a worker: the options of one, checked, and the call of its generator with the records not pushed yet."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from mongoq.core.command import WakeEvent
from mongoq.core.coordination.sources import Yielded, encode_record
from mongoq.data.arguments import Duration, duration
from mongoq.data.encoding.error_text import spoken
from mongoq.data.log_fields import log_fields
from mongoq.drivers.sleep import rest, rest_aio
from mongoq.errors import ArgumentInvalid
from mongoq.worker.consumer import LogErrors, check_range, label_of
from mongoq.worker.failure_log import error_line
from mongoq.worker.outcome_resolver import is_function
from mongoq.worker.run_context import RunContext

logger = logging.getLogger("mongoq.source")

MAX_BATCH_BYTES = 8 * 1024 * 1024
"""Bytes of payloads from which no further record is added to a batch."""
MAX_RECORD_AGE_SECONDS = 0.5
"""Seconds after which a record is pushed even if its batch is not full."""
MAX_BATCHES_AHEAD = 2
"""Batches that a generator may be ahead of the pushes."""
POLL_SECONDS = 60.0
"""Seconds after which a waiting generator checks for room again, even without a wake-up."""
MAX_BATCH = 10_000
"""Maximum number of records in a batch."""
MIN_LEASE = timedelta(milliseconds=100)
"""Shortest lease: the runner extends a lease three times before it ends."""


@dataclass(frozen=True, slots=True, eq=False)
class SourcePlan:
    """Options of a source for the engine; durations are ``timedelta``.

    Attributes:
        name: name of the source.
        id: id of the source's control document.
        queue: handle of the target queue, with the codec of its payloads.
        handler: generator function, called with the position.
        asynchronous: True if the handler is an async generator function.
        batch: maximum number of records per transaction.
        every: time from the end of a call to the next call; ``None`` to call once.
        lease: time for which the source stays with a process that has died.
    """

    name: str
    id: str
    queue: Any
    handler: Callable[..., Any]
    asynchronous: bool
    batch: int
    every: timedelta | None
    lease: timedelta

    def open_reader(self, position: Any, notify: Callable[[], None], log_errors: LogErrors) -> SourceReader:
        """Return a reader of one call of the handler, not started; it calls ``notify`` when its state changes."""
        return (AsyncSourceReader if self.asynchronous else SourceReader)(self, position, notify, log_errors)


def source_plan(
    name: str,
    id: str,
    queue: Any,
    handler: Any,
    *,
    batch: int,
    every: Duration | None,
    lease: Duration,
    coroutines: bool,
) -> SourcePlan:
    """Check the options and return a plan; ``coroutines`` allows async generator functions."""
    length = duration(lease, "lease", zero=False)
    if length < MIN_LEASE:
        raise ArgumentInvalid("lease", f"a tenth of a second or longer, not {lease!r}")
    if not callable(handler):
        raise ArgumentInvalid("handler", f"a generator function, not {type(handler).__name__}")
    label = label_of(handler)
    asynchronous = is_function(inspect.isasyncgenfunction, handler)
    if not (asynchronous or is_function(inspect.isgeneratorfunction, handler)):
        kind = "a coroutine function" if is_function(inspect.iscoroutinefunction, handler) else "a plain function"
        problem = f"{label} is {kind}, and a source is a generator; let it yield mongoq.Record(…)"
        raise ArgumentInvalid("handler", problem)
    if asynchronous and not coroutines:
        raise ArgumentInvalid("handler", f"{label} is an async generator; start_async and drain_async run it")
    try:
        inspect.signature(handler).bind(None)
    except (TypeError, ValueError):
        raise ArgumentInvalid("handler", f"{label} is to take (position), and nothing else") from None
    return SourcePlan(
        name=name,
        id=id,
        queue=queue,
        handler=handler,
        asynchronous=asynchronous,
        batch=check_range(batch, "batch", 1, MAX_BATCH),
        every=None if every is None else duration(every, "every", zero=False),
        lease=length,
    )


class SourceReader:
    """Reads a plain generator in its own thread, from start to end.

    The thread waits when it is too far ahead of the pushes. Buffered records are not in the queue: when the process
    dies, the next one calls the source with the position of the last pushed record.

    Attributes:
        ended: True after the generator was closed; it yields nothing more.
        failure: error that ended the generator: its own, or that of a record that cannot be pushed; else ``None``.
    """

    def __init__(
        self, plan: SourcePlan, position: Any, notify: Callable[[], None], log_errors: LogErrors = "message"
    ) -> None:
        self._plan, self._position = plan, position
        self._notify, self._log_errors = notify, log_errors
        self._records: deque[Yielded] = deque()
        # Two totals instead of one difference: each is written by one thread alone, so no lock is needed.
        self._read_bytes = self._taken_bytes = 0
        self._since = 0.0
        self._room_event = WakeEvent()
        self._closed = self._reported_full = False
        self._began_in: RunContext  # set by ``start``
        self.ended = False
        self.failure: BaseException | None = None

    # --- records to push -------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """True when the generator has ended and all its records were taken."""
        return self.ended and not self._records

    def wait(self) -> float | None:
        """Return the seconds until a batch is due; ``None`` without records."""
        if not self._records:
            return None
        if self._is_ahead_by(1) or self.ended or self._closed:
            return 0.0
        return max(0.0, self._since + MAX_RECORD_AGE_SECONDS - time.monotonic())

    def take(self) -> list[Yielded]:
        """Remove and return the oldest records, at most one batch."""
        records: list[Yielded] = []
        size = 0
        while self._records and len(records) < self._plan.batch and size < MAX_BATCH_BYTES:
            record = self._records.popleft()
            records.append(record)
            size += len(record.wrapped)
        self._taken_bytes += size
        self._since = time.monotonic()
        self._room_event.set()
        return records

    def _is_ahead_by(self, batches: int) -> bool:
        size = self._read_bytes - self._taken_bytes
        return len(self._records) >= self._plan.batch * batches or size >= MAX_BATCH_BYTES * batches

    # --- the generator ---------------------------------------------------------------------------

    def start(self, context: RunContext) -> None:
        self._began_in = context
        work = partial(context.call, self._read)
        threading.Thread(target=work, name=f"mongoq-read-{self._plan.name}", daemon=True).start()

    def close(self) -> None:
        """Have the generator closed at its current yield; later records are ignored."""
        self._closed = True
        self._room_event.set()

    def _read(self) -> None:
        generator = None
        try:
            generator = self._plan.handler(self._position)
            for record in generator:
                self._add(record)
                while self._is_full():
                    rest(self._room_event, POLL_SECONDS)
                    self._room_event.was_set = False
                if self._closed:
                    break
        except BaseException as error:
            self._record_failure(error)
        try:
            if generator is not None:
                generator.close()
        except BaseException as error:
            self._record_failure(error, closing=True)
        self._end()

    def _add(self, record: Any) -> None:
        """Check, encode and add a record, unless the reader was closed; ``ArgumentInvalid`` if it cannot be pushed."""
        self._began_in.check()  # no runner takes the records of a child that the generator has forked
        if self._closed:
            return
        checked = encode_record(self._plan.queue._context, record)
        if not self._records:
            self._since = time.monotonic()
        self._read_bytes += len(checked.wrapped)
        self._records.append(checked)
        full = self._is_ahead_by(1)
        if (full and not self._reported_full) or len(self._records) == 1:
            self._notify()
        self._reported_full = full

    def _is_full(self) -> bool:
        return not self._closed and self._is_ahead_by(MAX_BATCHES_AHEAD)

    def _record_failure(self, error: BaseException, *, closing: bool = False) -> None:
        """Keep the error of a generator as the failure of the source; one after its end is only logged."""
        if not closing:
            self._began_in.check(error)
            if not self._closed:
                self.failure = error
                return
        level, text = logging.DEBUG, "source %r raised an error after it was told to end: %s"
        if closing:
            level, text = logging.WARNING, "source %r raised an error when its generator was closed: %s"
        shown = spoken(error) if self._log_errors == "message" else error_line(error, "type")
        logger.log(level, text, self._plan.name, shown, extra=log_fields(queue=self._plan.queue.name))

    def _end(self) -> None:
        self.ended = True
        with suppress(RuntimeError):  # the event loop has ended, so no runner waits
            self._notify()


class AsyncSourceReader(SourceReader):
    """Reads an async generator in its own task; ``close`` cancels the task at its current await."""

    _task: asyncio.Task[None] | None = None
    _closing = False

    def start(self, context: RunContext) -> None:
        async def read() -> None:
            await context.step(self._read_all())

        def finish(task: asyncio.Task[None]) -> None:
            if task.cancelled() and not self._closed:  # before its first step
                self.start(context)
            else:
                self._end()

        self._began_in = context
        self._task = asyncio.create_task(read(), name=f"mongoq-read-{self._plan.name}")
        self._task.add_done_callback(finish)

    def close(self) -> None:
        """Have the generator closed at its current await; later records are ignored."""
        first = not self._closed
        super().close()
        if first and not self._closing and self._task is not None:
            self._task.cancel()

    async def _read_all(self) -> None:
        generator: Any = None
        try:
            generator = self._plan.handler(self._position)
            async for record in generator:
                self._add(record)
                while self._is_full():
                    await rest_aio(self._room_event, POLL_SECONDS)
                    self._room_event.was_set = False
                if self._closed:
                    break
        except BaseException as error:
            self._record_failure(error)
        self._closing = True
        try:
            if generator is not None:
                await generator.aclose()
        except BaseException as error:
            self._record_failure(error, closing=True)
