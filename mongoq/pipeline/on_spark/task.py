"""A task: works on stages and sources in its executor, and returns its counts."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from bson import ObjectId

from mongoq.drivers.signals import on_main_thread
from mongoq.errors import StageStopped
from mongoq.model.encoding.error_text import print_exception
from mongoq.pipeline.frames.handler import frames_of
from mongoq.pipeline.on_spark.serialization import SerializedGraph
from mongoq.pipeline.run.consumers import machinery
from mongoq.pipeline.run.counts import PipelineCounts
from mongoq.protocol.coordination.document_lease import is_halted
from mongoq.protocol.history.stats import flush
from mongoq.spark.clients import broker_at
from mongoq.spark.raw_options import Location
from mongoq.sync import Broker
from mongoq.worker.threads.engine import Engine

__all__ = ["Report", "Stop", "TaskOrder", "ready_for", "run_task"]

logger = logging.getLogger("mongoq.spark")

AS_LONG_AS_IT_TAKES = timedelta(days=365)
"""Grace of handlers at the end of a task: the task waits for them, because their items would run again and again."""
CHECK_SECONDS = 0.05
REST_SECONDS = 0.5
"""Seconds without work after which a task ends early, so that the slot is free for others."""
LISTEN_SECONDS = 0.5
"""Seconds between two checks whether the run was asked to stop."""


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """Order for a task; it contains the URI and never shows it.

    Attributes:
        place: location of the queues.
        run: id of the run that the task belongs to.
        graph: the pipeline.
        parts: names of the stages and sources to work on.
        seconds: how long the task works, in seconds.
        once: True if sources are called once, and the task ends with them.
        grace: seconds that handlers and sources may go on after the run was asked to stop.
        heartbeat: interval of the task's heartbeats.
    """

    place: Location
    run: ObjectId
    graph: SerializedGraph = field(repr=False)
    parts: frozenset[str]
    seconds: float
    once: bool
    grace: float
    heartbeat: timedelta


@dataclass(frozen=True, slots=True)
class Stop:
    """A stage or source that has stopped by itself: the item, as in ``StageStopped``, and the error as text."""

    stage: str
    queue: str
    item_id: Any
    cause: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a task; times are seconds since 1970 by the executor's clock."""

    counts: PipelineCounts
    stops: tuple[Stop, ...] = ()


def ready_for(order: TaskOrder) -> None:
    """Raise the error that would keep a task from working: a missing module, or a server out of reach."""
    # Unpickling imports the modules of the handlers: a missing one raises here.
    graph = order.graph.unpack()
    machinery(graph, broker_at(order.place), coroutines=Engine.asynchronous)
    for stage in graph.own_stages:
        if stage.format is not None:
            frames_of(stage.format)
    broker_at(order.place).ping()


def run_task(order: TaskOrder) -> Report:
    """Work on the stages and sources, and return the counts; nothing, if the run was asked to stop before.

    A killed task leaves its items to their leases, and its counts are lost; settled items stay settled. When Spark ends
    its Python processes, the task stops in good order, as if the run was asked to stop.
    """
    broker = broker_at(order.place)
    listener = _StopListener(broker, order.run)
    if listener.is_stopped():
        return Report(PipelineCounts())
    consumers, sources = machinery(
        order.graph.unpack().only(sorted(order.parts)), broker, coroutines=Engine.asynchronous
    )
    engine = Engine(
        broker, consumers, grace=AS_LONG_AS_IT_TAKES, heartbeat=order.heartbeat, sources=sources, run=order.run
    )
    ended = threading.Event()
    threading.Thread(target=_watch, args=(engine, order, listener, ended), name="mongoq-task", daemon=True).start()
    with _delay_sighup(listener):
        try:
            engine.run(drain=order.once)
        except StageStopped:
            pass  # reported below, with all others
        finally:
            ended.set()
        broker._run(flush)
    return Report(
        PipelineCounts.of(engine).later(time.time() - time.monotonic()), (*_stage_stops(engine), *_source_stops(engine))
    )


def _watch(engine: Engine, order: TaskOrder, listener: _StopListener, ended: threading.Event) -> None:
    """End the engine when its time is over, when there was no work for a moment, or when the run is to stop.

    In the last case, the items of calls that are still running after the grace are released.
    """
    began = worked = time.monotonic()
    settled = 0
    while not ended.wait(CHECK_SECONDS):
        now = time.monotonic()
        # Work under way counts like settled items: a long handler must not look idle.
        if engine.settled != settled or not engine.is_resting:
            settled, worked = engine.settled, now
        late = now - began > order.seconds and _has_progressed(engine)
        if now - worked > REST_SECONDS or late or listener.is_stopped():
            engine.stop()
            break
    while not ended.wait(CHECK_SECONDS):
        if listener.is_stopped():
            if not ended.wait(order.grace):
                engine.stop()
            return


@contextmanager
def _delay_sighup(listener: _StopListener) -> Iterator[None]:
    """Let SIGHUP stop the task in good order first, and end the process after that.

    Spark sends SIGHUP to its Python processes when the session is stopped, and when its JVM ends for any reason.
    Without this handler it would kill them at once: their items would wait for the ends of their leases, with an
    attempt counted.
    """
    if not on_main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: Any) -> None:
        came.append(number)
        listener.record_stop()

    before = signal.signal(signal.SIGHUP, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        if came:  # no process reads this task's result any more
            signal.raise_signal(signal.SIGHUP)


class _StopListener:
    """Checks whether the run was asked to stop, at most once per ``LISTEN_SECONDS`` seconds."""

    def __init__(self, broker: Broker, run: ObjectId) -> None:
        self._broker = broker
        self._run = run
        self._again = 0.0
        self._is_stopped = False

    def record_stop(self) -> None:
        """Record that the run was asked to stop."""
        self._is_stopped = True

    def is_stopped(self) -> bool:
        if self._is_stopped or time.monotonic() < self._again:
            return self._is_stopped
        self._again = time.monotonic() + LISTEN_SECONDS
        try:
            self._is_stopped = self._broker._run(is_halted, self._run)
        except Exception as error:  # a task that does not notice the stop is cancelled by the driver
            logger.debug("cannot read whether the run has to stop: %r", error)
        return self._is_stopped


def _has_progressed(engine: Engine) -> bool:
    """Return whether every source has pushed a record or ended: else it would begin again at the same position."""
    return all(runner.pushed or runner.over for runner in engine.source_runners)


def _stage_stops(engine: Engine) -> list[Stop]:
    return [
        Stop(loop.consumer.label, loop.halted[0].queue, loop.halted[0].id, _text(loop.halted[1]))
        for loop in engine.loops
        if loop.halted is not None
    ]


def _source_stops(engine: Engine) -> list[Stop]:
    return [
        Stop(runner.plan.name, runner.plan.queue.name, None, _text(runner.failure))
        for runner in engine.source_runners
        if runner.failure is not None
    ]


def _text(error: BaseException | str | None) -> str | None:
    """Return an error as text, because its type may exist in the executor only."""
    if isinstance(error, BaseException):
        return print_exception(error).rstrip()
    return error
