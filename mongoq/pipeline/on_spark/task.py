"""A shift: what one task works off in its executor, and what it tells of it."""

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
from mongoq.model.encoding.error_text import printed
from mongoq.pipeline.frames.formats import frames_of
from mongoq.pipeline.on_spark.serialization import SerializedGraph
from mongoq.pipeline.run.counts import PipelineCounts
from mongoq.pipeline.run.sources import machinery
from mongoq.protocol.coordination.stop_signal import is_halted
from mongoq.protocol.history.stats import flush
from mongoq.spark.clients import broker_at
from mongoq.spark.raw_options import Location
from mongoq.sync import Broker
from mongoq.worker.threads.engine import Engine

__all__ = ["Report", "Stop", "TaskOrder", "ready_for", "worked"]

logger = logging.getLogger("mongoq.spark")

AS_LONG_AS_IT_TAKES = timedelta(days=365)
"""A handler that runs at the end of a shift is waited for: given up, it would be run again and again."""
LOOK = 0.05
REST = 0.5
"""Seconds without any work after which a shift ends before its time: the slot is free for others."""
LISTEN = 0.5
"""Seconds between two looks whether the run was told to stop."""


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """What a task is told; it travels with the URI and never shows it.

    Attributes:
        place: where the queues are.
        run: whose task it is.
        graph: the pipeline.
        parts: the names of the stages and sources to work on.
        seconds: for how long.
        once: sources are called once, and the shift ends with them.
        grace: seconds that handlers and sources may go on once the run is told to stop.
        heartbeat: how often it says that it lives.
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
    """A stage or a source that has stopped by itself: the item, as ``StageStopped`` tells it, and the error as text."""

    stage: str
    queue: str
    item_id: Any
    cause: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """What a shift came to; times are seconds since 1970 by the executor's clock."""

    tallies: PipelineCounts
    stops: tuple[Stop, ...] = ()


def ready_for(order: TaskOrder) -> None:
    """Raise what would keep a shift from working: modules that are missing here, or a server out of reach."""
    graph = order.graph.unpacked()
    machinery(graph, broker_at(order.place), coroutines=Engine.asynchronous)
    for stage in graph.own_stages:
        if stage.format is not None:
            frames_of(stage.format)
    broker_at(order.place).ping()


def worked(order: TaskOrder) -> Report:
    """Work on the stages and sources, and return what was counted; nothing, if the run was told to stop before.

    Killed, it leaves what it held to the leases, and what it counted is forgotten; what it settled is settled. When
    Spark ends its Python processes, it stops in good order, as if the run was told to.
    """
    broker = broker_at(order.place)
    ear = _Ear(broker, order.run)
    if ear.hears():
        return Report(PipelineCounts())
    own, sources = machinery(order.graph.unpacked().only(sorted(order.parts)), broker, coroutines=Engine.asynchronous)
    engine = Engine(broker, own, grace=AS_LONG_AS_IT_TAKES, heartbeat=order.heartbeat, sources=sources, run=order.run)
    ended = threading.Event()
    threading.Thread(target=_watch, args=(engine, order, ear, ended), name="mongoq-shift", daemon=True).start()
    with _hang_up_late(ear):
        try:
            engine.run(drain=order.once)
        except StageStopped:
            pass  # told below, with all others
        finally:
            ended.set()
        broker._driver.run(flush(broker._context))
    return Report(
        PipelineCounts.of(engine).later(time.time() - time.monotonic()), (*_stations(engine), *_feeds(engine))
    )


def _watch(engine: Engine, order: TaskOrder, ear: _Ear, ended: threading.Event) -> None:
    """End the engine when its time is over, when there was nothing to do for a moment, or when the run is to stop.

    In the last case what has not come to its end when the grace is over is given back.
    """
    began = worked = time.monotonic()
    settled = 0
    while not ended.wait(LOOK):
        now = time.monotonic()
        if engine.settled != settled or not engine.is_resting:
            settled, worked = engine.settled, now
        late = now - began > order.seconds and _has_come_on(engine)
        if now - worked > REST or late or ear.hears():
            engine.stop()
            break
    while not ended.wait(LOOK):
        if ear.hears():
            if not ended.wait(order.grace):
                engine.stop()
            return


@contextmanager
def _hang_up_late(ear: _Ear) -> Iterator[None]:
    """Let SIGHUP stop the shift in good order, and end the process only after that.

    Spark sends it to its Python processes when the session is stopped, and when its JVM ends, however that comes. It
    would kill them at once: what they hold would wait for the ends of its leases, and count as a run.
    """
    if not on_main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: Any) -> None:
        came.append(number)
        ear.hear()

    before = signal.signal(signal.SIGHUP, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        if came:  # nobody reads what this process would tell
            signal.raise_signal(signal.SIGHUP)


class _Ear:
    """Hears whether the run was told to stop, when it is asked and some time has passed since the last time."""

    def __init__(self, broker: Broker, run: ObjectId) -> None:
        self._broker = broker
        self._run = run
        self._again = 0.0
        self._heard = False

    def hear(self) -> None:
        """Take it as told."""
        self._heard = True

    def hears(self) -> bool:
        if self._heard or time.monotonic() < self._again:
            return self._heard
        self._again = time.monotonic() + LISTEN
        try:
            self._heard = self._broker._driver.run(is_halted(self._broker._context, self._run))
        except Exception as error:  # the driver cancels what does not hear
            logger.debug("whether the run is to stop is not known: %r", error)
        return self._heard


def _has_come_on(engine: Engine) -> bool:
    """Say whether every source has pushed something: one that has not would begin again where it began."""
    return all(feed.pushed or feed.over for feed in engine.source_runners)


def _stations(engine: Engine) -> list[Stop]:
    return [
        Stop(station.consumer.label, station.halted[0].queue, station.halted[0].id, _text(station.halted[1]))
        for station in engine.loops
        if station.halted is not None
    ]


def _feeds(engine: Engine) -> list[Stop]:
    return [
        Stop(feed.plan.name, feed.plan.queue.name, None, _text(feed.failure))
        for feed in engine.source_runners
        if feed.failure is not None
    ]


def _text(error: BaseException | str | None) -> str | None:
    """Return an error as text: its type may be known in the executor alone."""
    if isinstance(error, BaseException):
        return printed(error).rstrip()
    return error
