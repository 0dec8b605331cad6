"""A run on Spark: starts the scheduler and the frame queries, until it is stopped or nothing is left."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any

from bson import ObjectId

from mongoq.connection import connect
from mongoq.errors import ArgumentInvalid, BrokerClosed, GraphInvalid, StageStopped
from mongoq.model.arguments import Duration, count, duration
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.on_spark.frame_query import FrameQueries, FrameQuery
from mongoq.pipeline.on_spark.frame_settler import path_of
from mongoq.pipeline.on_spark.scheduler import Monitor, Scheduler, TaskSlot, Trigger
from mongoq.pipeline.on_spark.serialization import SerializedGraph, pack_graph
from mongoq.pipeline.on_spark.task import (
    ENDED,
    Report,
    TaskOrder,
    cancel,
    has_ended,
    ready_for,
    run_task,
    run_tasks,
)
from mongoq.pipeline.run.consumers import find_transactional, machinery
from mongoq.pipeline.run.progress import PipelineCounts, Progress, progress_of
from mongoq.pipeline.run.run import ThreadedRun
from mongoq.protocol.history.counters import QueueStats
from mongoq.protocol_threads.coordination.document_lease import halt
from mongoq.protocol_threads.coordination.heartbeats import workers_of
from mongoq.protocol_threads.history.counters import stats
from mongoq.spark.errors import ExecutorError, ExecutorsUnready
from mongoq.spark.raw_options import Location
from mongoq.spark.versions import require
from mongoq.worker.coordinator import Coordinator
from mongoq.worker.sources import SourcePlan
from mongoq.worker.threads.engine import begin_work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("mongoq.spark")

CHECK_SECONDS, MAX_CHECK_SECONDS = 0.1, 0.5
"""Seconds between two checks for work: at first, and after a while without work."""
TASK_SECONDS = 5.0
"""Seconds that a task on stages lasts, and so the age of its counts."""
SERVER_SECONDS = 10.0
"""Seconds for one command to the server, and for tasks to end after the grace before they are cancelled."""
ITEMS_RELEASED_TEXT = "its tasks have released the items that they had not settled"
ITEMS_LEASED_TEXT = "some of its tasks have not reported their end: their items come back when their leases end"
MAX_JOBS = 8
"""Jobs on stages at the same time, at most; their tasks are shared out among them."""
MAX_TASKS = 10_000


class SparkRun(ThreadedRun):
    """A pipeline at work in the executors of a Spark session, made by ``pipeline.run_on_spark``.

    ```python
    with pipeline.run_on_spark(spark, uri, available_now=True) as run:
        run.wait()
    ```

    At the end of the block the run is stopped in good order, and the block waits for its end.
    """

    def __init__(
        self,
        graph: Graph,
        spark: SparkSession,
        place: Location,
        *,
        checkpoint: Any,
        available_now: bool,
        trigger: Duration | None,
        tasks: int | None,
        grace: Duration,
        heartbeat: Duration,
        signals: bool,
    ) -> None:
        super().__init__(graph.name, signals=signals)
        _check_arguments(graph, spark, checkpoint, available_now, trigger)
        self._graph = graph
        self._spark = spark
        self._drain = available_now
        every = None if trigger is None else duration(trigger, "trigger", zero=False)
        self._trigger = Trigger(every)
        beat, seconds = duration(heartbeat, "heartbeat", zero=False), duration(grace, "grace").total_seconds()
        number = _tasks(spark, tasks)
        self._interrupted = False
        self._last: Progress | None = None
        with ExitStack() as undo:
            self._broker = broker = connect(place.uri, database=place.database, collection=place.collection)
            undo.callback(broker.close)
            parts = frozenset(stage.name for stage in graph.own_stages if stage.frame is None)
            plain = replace(graph, chosen=parts | {source.name for source in graph.own_sources})
            consumers, sources = machinery(plain, broker, coroutines=False)
            broker._run(begin_work, consumers, find_transactional(graph))
            serialized = SerializedGraph.of(pack_graph(plain), spark)
            undo.callback(serialized.discard)
            own: dict[str, Any] = {"grace": seconds, "heartbeat": beat, "log_errors": graph.log_errors}
            self._order = order = TaskOrder(place, ObjectId(), serialized, parts, TASK_SECONDS, once=False, **own)
            frame_stages = [stage for stage in graph.own_stages if stage.frame is not None]
            self._frames = [(stage, broker.queue(queue)) for stage in frame_stages for queue in stage.sources]
            self._stopping = threading.Event()
            identity = str(broker._context.identity)
            self._coordinator = Coordinator(broker._context.registry, identity, log_errors=graph.log_errors)
            self._monitor = Monitor(broker, consumers, self._frames, self._coordinator, self._stopping)
            slots = self._make_slots(number, parts, sources)
            self._scheduler = Scheduler(f"mongoq-{graph.name}", order, slots, self._run_order, self._check)
            # Before any query starts: a missing module is one clear error here, and many failed tasks later.
            try:
                self._check()
            except Exception as error:
                raise ExecutorsUnready(graph.name, error) from error
            self._frame_queries = FrameQueries(self._queries(place, checkpoint, every))
            self._frame_queries.start()
            undo.pop_all()
        self._begin(self._work)

    # --- before it starts ------------------------------------------------------------------------

    def _check(self) -> None:
        """Let a task check that an executor has everything it needs; raises ``ExecutorError`` when Spark has ended."""
        if has_ended(self._spark):
            raise ExecutorError(ENDED)
        run_tasks(self._spark, f"mongoq {self._graph.name}: is all there", ready_for, self._order, 1)

    def _make_slots(self, tasks: int, parts: frozenset[str], sources: Sequence[SourcePlan]) -> list[TaskSlot]:
        context = getattr(self._spark, "_sc", None)
        cores = tasks if context is None else context.defaultParallelism
        shared = parts if len(sources) >= cores else frozenset[str]()  # otherwise sources would leave no slot to stages
        source_slots = [
            TaskSlot(1, shared | {source.name}, source=source.name, every=None if self._drain else source.every)
            for source in sources
        ]
        number = min(tasks, MAX_JOBS) if parts else 0
        # Spread the tasks evenly: job n has the tasks from places[n] to places[n + 1].
        places = [tasks * place // number for place in range(number + 1)] if number else []
        return [*source_slots, *(TaskSlot(high - low, parts) for low, high in pairwise(places))]

    def _queries(self, place: Location, checkpoint: Any, every: timedelta | None) -> Iterator[tuple[str, FrameQuery]]:
        seconds = None if every is None else every.total_seconds()
        for stage, queue in self._frames:
            path = path_of(None if checkpoint is None else str(checkpoint), self._graph, stage, queue.name)
            query = FrameQuery(self._spark, place, self._graph, stage, queue.name, checkpoint=path, every=seconds)
            yield stage.name, query

    def _run_order(self, order: TaskOrder, tasks: int) -> Sequence[Report]:
        title = f"mongoq {self._graph.name}: {', '.join(sorted(order.parts))}"
        return run_tasks(self._spark, title, run_task, order, tasks)

    # --- at work ---------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._scheduler.start()
            try:
                self._coordinate()
            finally:
                self._scheduler.end()
                self._ask_tasks_to_end()
                self._frame_queries.end(self._order.grace)
                self._wait_for_scheduler()
                self._wait_for_tasks()
            if self._broken is not None:
                raise self._broken
            for stop in self._scheduler.stops.values():
                cause = None if stop.cause is None else ExecutorError(stop.cause)
                raise StageStopped(stop.stage, stop.queue, stop.item_id) from cause
            for stopped in self._frame_queries.stops.values():
                raise stopped
        finally:
            self._broker._context.stats = None  # the final figures must not come from the cache
            try:
                depths = self._broker._run_within(SERVER_SECONDS, stats)
            except Exception as error:
                logger.warning("cannot read what is left in the queues of pipeline %r: %r", self._graph.name, error)
                depths = {}
            self._last = self._make_progress(depths, ended=True)
            self._order.graph.discard()
            self._broker.close()

    def _ask_tasks_to_end(self) -> None:
        """Ask the running tasks to end, if there are any; tasks that do not read it end when their time is over."""
        if self._scheduler.is_at_work:
            try:
                self._broker._run_within(SERVER_SECONDS, halt, self._order.run)
            except Exception as error:
                logger.warning("cannot ask the tasks of pipeline %r to end: %r", self._graph.name, error)

    def _wait_for_scheduler(self) -> None:
        """Wait for the running tasks, and cancel tasks that do not end."""
        if self._scheduler.join(self._order.grace + SERVER_SECONDS):
            return
        sentence = (
            "tasks of pipeline %r do not end; they are cancelled, and their items come back when their leases end"
        )
        logger.warning(sentence, self._graph.name)
        try:
            cancel(self._spark, self._order)
        except Exception as error:
            logger.warning("the tasks could not be cancelled: %r", error)
        self._scheduler.join(SERVER_SECONDS)

    def _wait_for_tasks(self) -> None:
        """Wait for tasks that Spark does not report on any more, if it has ended: they release their items.

        Raises:
            ExecutorError: Spark ended during the run, or tasks do not report that they have ended.
        """
        if not has_ended(self._spark):
            return
        tasks_left = self._tasks_left()
        until = time.monotonic() + self._order.grace + SERVER_SECONDS
        while tasks_left and time.monotonic() < until:
            time.sleep(CHECK_SECONDS)
            tasks_left = self._tasks_left()
        if tasks_left or not self._interrupted:
            raise ExecutorError(f"{ENDED}; {ITEMS_LEASED_TEXT if tasks_left else ITEMS_RELEASED_TEXT}")

    def _tasks_left(self) -> bool:
        """Return whether tasks of the run are alive, or this is unknown."""
        try:
            return self._broker._run_within(SERVER_SECONDS, workers_of, self._order.run) > 0
        except Exception as error:
            logger.warning("cannot read whether tasks of pipeline %r still run: %r", self._graph.name, error)
            return True

    def _coordinate(self) -> None:
        """Report to the scheduler whether there is work, until the end of the run."""
        pause = CHECK_SECONDS
        while not self._stopping.wait(pause):
            if has_ended(self._spark):
                return
            self._frame_queries.look()
            # All stages have stopped by themselves, or there are none, and no source goes on.
            idle = self._scheduler.sources_are_over and not self._scheduler.is_at_work
            if idle and self._scheduler.stages_have_stopped and self._frame_queries.have_stopped:
                return
            if self._broken:
                return
            stopped = self._scheduler.stops.keys() | self._frame_queries.stops.keys()
            due = self._monitor.is_due(stopped)
            self._scheduler.set_wanted(due and self._trigger.is_open())
            if due or self._scheduler.is_at_work:
                pause = CHECK_SECONDS
                continue
            # Nothing to do: check less often, up to MAX_CHECK_SECONDS.
            pause = min(pause * 2, MAX_CHECK_SECONDS)
            self._trigger.close()
            if self._drain and self._scheduler.sources_are_over and self._monitor.is_empty(stopped):
                return

    @property
    def _broken(self) -> BaseException | None:
        """Error that the run cannot go on with."""
        return self._scheduler.failure or self._frame_queries.failure or self._coordinator.failure

    # --- calls from outside ----------------------------------------------------------------------

    def stop(self) -> None:
        """Start no further task, and end when the running tasks have ended; does not wait.

        Tasks read the stop from a control document (``update``, upsert) within half a second. They release items that
        they have claimed and not started; handlers and sources may go on for the grace, then their items are released
        as well. Tasks that cannot be reached, or do not end, are cancelled ten seconds later; their items wait for
        their leases.
        """
        self._interrupted = self._interrupted or not self.ended
        self._stopping.set()

    def progress(self) -> Progress:
        """Return the progress: contents of the queues (``aggregate``), and the counts of tasks that have ended.

        A task lasts about five seconds. Counts of a task whose process was killed are missing, and so is the number of
        running calls: ``running`` is 0.
        """
        if self._last is None:
            try:
                return self._make_progress(self._broker._run(stats), ended=False)
            except BrokerClosed:  # the run has ended between the two lines
                self.wait()
        assert self._last is not None
        return self._last

    def _make_progress(self, depths: Mapping[str, QueueStats], *, ended: bool) -> Progress:
        counts = PipelineCounts.sum([self._scheduler.counts, self._frame_queries.counts])
        return progress_of(self._graph, counts, depths, ended=ended, interrupted=self._interrupted)


def _check_arguments(graph: Graph, spark: Any, checkpoint: Any, available_now: Any, trigger: Any) -> None:
    """Check the arguments of a run.

    Raises:
        GraphInvalid: a stage cannot run on Spark, or not on this session.
        SparkUnavailable: PySpark is too old for frame stages.
        ArgumentInvalid: an argument is invalid.
    """
    faults = []
    frames = [stage.name for stage in graph.own_stages if stage.frame is not None]
    if frames:
        require("running frame stages")
    if any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(spark).__mro__):
        # Queries of frame stages call back into this process, which the server of Spark Connect cannot do.
        problem = "a frame stage needs a classic Spark session, and this one is of Spark Connect"
        hint = "run it where the driver is (spark-submit, or master(...)), and the other stages by stages="
        faults += [f"stage {name!r}: {problem}; {hint}" for name in frames]
    if not faults:
        # A task ends after seconds without work, and a slow rate would start one after another.
        hint = "run it by start(broker, stages=[...]), and the other stages here by stages="
        faults += [
            f"stage {stage.name!r}: {' and '.join(stage.limits)}: tasks of Spark do not wait for limits; {hint}"
            for stage in graph.own_stages
            if stage.limits
        ]
    if faults:
        raise GraphInvalid(graph.name, faults)
    if has_ended(spark):
        raise ArgumentInvalid("spark", "this session was stopped; start another one")
    if isinstance(spark, type) or not all(hasattr(spark, method) for method in ("range", "readStream", "conf")):
        description = f"the class {spark.__name__}" if isinstance(spark, type) else type(spark).__name__
        raise ArgumentInvalid("spark", f"a SparkSession, not {description}")
    if not (checkpoint is None or (isinstance(checkpoint, str | PathLike) and str(checkpoint).strip())):
        raise ArgumentInvalid("checkpoint", f"the path of a folder, not {checkpoint!r:.60}")
    if not isinstance(available_now, bool):
        raise ArgumentInvalid("available_now", f"a bool, not {type(available_now).__name__}")
    if available_now and trigger is not None:
        raise ArgumentInvalid("trigger", "either this or available_now: a run that ends has no rounds")


def _tasks(spark: Any, tasks: int | None) -> int:
    if tasks is not None:
        number = count(tasks, "tasks", least=1)
        if number > MAX_TASKS:
            raise ArgumentInvalid("tasks", f"{MAX_TASKS:,} at most, not {number:,}")
        return number
    context = getattr(spark, "_sc", None)
    if context is None:
        raise ArgumentInvalid(
            "tasks", "a session of Spark Connect does not tell how many cores there are; say how many"
        )
    return int(context.defaultParallelism)
