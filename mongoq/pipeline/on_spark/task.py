"""A task: works on stages and sources in its executor, and returns its counts; and the Spark jobs that tasks run in."""

from __future__ import annotations

import logging
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from bson import ObjectId
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from mongoq.data.encoding.error_text import print_exception
from mongoq.drivers.signals import on_main_thread
from mongoq.errors import StageStopped
from mongoq.pipeline.frames.rows import frames_of
from mongoq.pipeline.on_spark.serialization import SerializedGraph
from mongoq.pipeline.run.consumers import machinery, make_engine
from mongoq.pipeline.run.run import Counts, count_parts
from mongoq.spark.clients import broker_at, flush_observer
from mongoq.spark.raw_options import Location
from mongoq.sync.operations import flush, is_halted
from mongoq.worker.consumer import LogErrors
from mongoq.worker.threads.engine import Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("mongoq.spark")

AS_LONG_AS_IT_TAKES = timedelta(days=365)
"""Grace of handlers at the end of a task: the task waits for them, because their items would run again and again."""
CHECK_SECONDS = 0.25
"""Seconds between two looks at the engine, and at whether the run was asked to stop."""
REST_SECONDS = 0.5
"""Seconds without work after which a task ends early, so that the slot is free for others."""
T = TypeVar("T")
RESULT = "result"
ENDED = "the Spark session, or its JVM, has ended while the pipeline ran; start both again"


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
        log_errors: what logs of the driver say of the errors of handlers.
    """

    place: Location
    run: ObjectId
    graph: SerializedGraph = field(repr=False)
    parts: frozenset[str]
    seconds: float
    once: bool
    grace: float
    heartbeat: timedelta
    log_errors: LogErrors = "message"


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

    counts: Counts
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
    if broker._run(is_halted, order.run):
        return Report({})
    graph = order.graph.unpack().only(sorted(order.parts))
    options: dict[str, Any] = {"heartbeat": order.heartbeat, "run": order.run, "grace": AS_LONG_AS_IT_TAKES}
    engine = make_engine(Engine, graph, broker, **options)
    stopping, ended = threading.Event(), threading.Event()
    threading.Thread(target=_watch, args=(engine, order, stopping, ended), name="mongoq-task", daemon=True).start()
    with _delay_sighup(stopping):
        try:
            engine.run(drain=order.once)
        except StageStopped:
            pass  # reported below, with all others
        finally:
            ended.set()
            flush_observer(broker)
        broker._run(flush)
    stops = [
        Stop(loop.consumer.label, loop.halted[0].queue, loop.halted[0].id, _text(loop.halted[1]))
        for loop in engine.loops
        if loop.halted is not None
    ]
    stops += [
        Stop(runner.plan.name, runner.plan.queue.name, None, _text(runner.failure))
        for runner in engine.source_runners
        if runner.failure is not None
    ]
    return Report(count_parts(engine, ahead=time.time() - time.monotonic()), tuple(stops))


def _watch(engine: Engine, order: TaskOrder, stopping: threading.Event, ended: threading.Event) -> None:
    """End the engine when its time is over, when there was no work for a moment, or when the run is to stop.

    In the last case, the items of calls that are still running after the grace are released.
    """

    def is_stopped() -> bool:
        try:
            return stopping.is_set() or broker_at(order.place)._run(is_halted, order.run)
        except Exception as error:  # a task that does not notice the stop is cancelled by the driver
            logger.debug("cannot read whether the run has to stop: %r", error)
            return False

    began = worked = time.monotonic()
    settled = 0
    while not ended.wait(CHECK_SECONDS):
        now = time.monotonic()
        # Work under way counts like settled items: a long handler must not look idle.
        if engine.settled != settled or not engine.is_resting:
            settled, worked = engine.settled, now
        # A source that has neither pushed a record nor ended would begin again at the same position.
        has_progressed = all(runner.pushed or runner.over for runner in engine.source_runners)
        late = now - began > order.seconds and has_progressed
        if now - worked > REST_SECONDS or late or is_stopped():
            engine.stop()
            break
    while not ended.wait(CHECK_SECONDS):
        if is_stopped():
            if not ended.wait(order.grace):
                engine.stop()
            return


@contextmanager
def _delay_sighup(stopping: threading.Event) -> Iterator[None]:
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
        stopping.set()

    before = signal.signal(signal.SIGHUP, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        if came:  # no process reads this task's result any more
            signal.raise_signal(signal.SIGHUP)


def _text(error: BaseException | str | None) -> str | None:
    """Return an error as text, because its type may exist in the executor only."""
    if isinstance(error, BaseException):
        return print_exception(error).rstrip()
    return error


def run_tasks(spark: SparkSession, title: str, work: Callable[[TaskOrder], T], order: TaskOrder, tasks: int) -> list[T]:
    """Run a function in ``tasks`` Spark tasks, and return the result of each.

    Executors must be able to import the function and the types of its results.

    Raises:
        Exception: Spark's error for a job that failed, for example when a task raised or its process was killed.
    """

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({RESULT: [pickle.dumps(work(order))]})

    context: Any = getattr(spark, "_sc", None)
    if context is not None:  # a session of Spark Connect has none
        context.setJobDescription(title)
    # mapInArrow on a range: it works with Spark Connect as well, which has no RDDs.
    frame = spark.range(0, tasks, 1, tasks).mapInArrow(rows, f"{RESULT} binary")
    (spark.addTag if context is None else context.addJobTag)(_tag(order))
    try:
        return [pickle.loads(row[RESULT]) for row in frame.collect()]  # noqa: S301  # the data comes from our own tasks
    finally:
        if not has_ended(spark):
            (spark.removeTag if context is None else context.removeJobTag)(_tag(order))


def cancel(spark: SparkSession, order: TaskOrder) -> None:
    """End all jobs of a run at once: their Python processes are killed, and their items wait for their leases."""
    context = getattr(spark, "_sc", None)
    (spark.interruptTag if context is None else context.cancelJobsWithTag)(_tag(order))


def _tag(order: TaskOrder) -> str:
    """Return the tag of all jobs of a run."""
    return f"mongoq-{order.run}"


def has_ended(spark: Any) -> bool:
    """Return whether the session was stopped, or its JVM is gone; unknown, so False, for a session of Spark Connect.

    The JVM stops its context by itself when a signal ends it, and Python gets no notice.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        return False
    java = context._jsc  # ``stop`` sets it to None
    if java is None:
        return True
    try:
        return bool(java.sc().isStopped())
    except (OSError, Py4JError):
        return True
