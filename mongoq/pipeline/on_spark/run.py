"""A run on Spark: starts the scheduler and the frame queries, until it is stopped or nothing is left."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bson import ObjectId

from mongoq import QueueStats
from mongoq.connection import connect
from mongoq.data.arguments import Duration, count, duration
from mongoq.errors import ArgumentInvalid, BrokerClosed, GraphInvalid, StageStopped
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.on_spark.frame_query import FrameQuery
from mongoq.pipeline.on_spark.frame_settler import consumer_of
from mongoq.pipeline.on_spark.scheduler import Scheduler, TaskSlot
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
from mongoq.pipeline.run.run import Counts, PartCounts, Progress, ThreadedRun, progress_of, sum_counts
from mongoq.spark.errors import ExecutorError, ExecutorsUnready
from mongoq.spark.raw_options import Location
from mongoq.spark.versions import require
from mongoq.sync import Queue
from mongoq.sync.operations import find_next_dues, halt, is_drained, stats, workers_of
from mongoq.worker.coordinator import Coordinator
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
        self._every = None if trigger is None else duration(trigger, "trigger", zero=False).total_seconds()
        beat, seconds = duration(heartbeat, "heartbeat", zero=False), duration(grace, "grace").total_seconds()
        context: Any = getattr(spark, "_sc", None)  # a session of Spark Connect has none
        if tasks is None and context is None:
            problem = "a session of Spark Connect does not tell how many cores there are; say how many"
            raise ArgumentInvalid("tasks", problem)
        number = int(context.defaultParallelism) if tasks is None else count(tasks, "tasks", least=1)
        if tasks is not None and number > MAX_TASKS:
            raise ArgumentInvalid("tasks", f"{MAX_TASKS:,} at most, not {number:,}")
        cores = number if context is None else int(context.defaultParallelism)
        self._interrupted = False
        self._last: Progress | None = None
        # Of the frame stages: counts, the stages that have stopped by themselves, and another error that ended a query.
        self._frame_counts: Counts = {}
        self._frame_stops: dict[str, StageStopped] = {}
        self._frame_failure: BaseException | None = None
        with ExitStack() as undo:
            self._broker = broker = connect(place.uri, database=place.database, collection=place.collection)
            undo.callback(broker.close)
            parts = frozenset(stage.name for stage in graph.own_stages if stage.frame is None)
            plain = replace(graph, chosen=parts | {source.name for source in graph.own_sources})
            consumers, sources = machinery(plain, broker, coroutines=False)
            broker._run(begin_work, consumers, find_transactional(graph))
            serialized = SerializedGraph.of(pack_graph(plain), spark)
            undo.callback(serialized.discard)
            self._order = order = TaskOrder(
                place, ObjectId(), serialized, parts, TASK_SECONDS, False, seconds, beat, graph.log_errors
            )
            frame_stages = [stage for stage in graph.own_stages if stage.frame is not None]
            self._frames = [(stage, broker.queue(queue)) for stage in frame_stages for queue in stage.sources]
            self._stopping = threading.Event()
            identity = str(broker._context.identity)
            self._coordinator = Coordinator(broker._context.registry, identity, log_errors=graph.log_errors)
            self._consumers = consumers
            shared = parts if len(sources) >= cores else frozenset[str]()  # or sources would leave no slot to stages
            slots = [
                TaskSlot(1, shared | {each.name}, source=each.name, every=None if available_now else each.every)
                for each in sources
            ]
            if parts:
                jobs = min(number, MAX_JOBS)
                # Spread the tasks evenly: job n has the tasks from places[n] to places[n + 1].
                places = [number * place // jobs for place in range(jobs + 1)]
                slots += [TaskSlot(high - low, parts) for low, high in pairwise(places)]
            self._scheduler = Scheduler(f"mongoq-{graph.name}", order, slots, self._run_order, self._check)
            # Before any query starts: a missing module is one clear error here, and many failed tasks later.
            try:
                self._check()
            except Exception as error:
                raise ExecutorsUnready(graph.name, error) from error
            self._queries = []
            for stage, queue in self._frames:
                if checkpoint is None:
                    needed = "and needs a folder that Spark can write to, the same at each start"
                    raise ArgumentInvalid("checkpoint", f"stage {stage.name!r} takes frames, {needed}")
                # A folder of the stage at this queue, below the folder of the run.
                path = f"{str(checkpoint).rstrip('/')}/{quote(consumer_of(graph, stage, queue.name), safe='')}"
                query = FrameQuery(spark, place, graph, stage, queue.name, checkpoint=path, every=self._every)
                self._queries.append(query)
            # All of them are started, or none.
            undo.callback(self._end_queries, 0)
            for query in self._queries:
                try:
                    query.start()
                except BaseException as error:
                    error.add_note(f"while the query of frame stage {query.stage!r} was started")
                    raise
            undo.pop_all()
        self._begin(self._work)

    def _check(self) -> None:
        """Let a task check that an executor has everything it needs; raises ``ExecutorError`` when Spark has ended."""
        if has_ended(self._spark):
            raise ExecutorError(ENDED)
        run_tasks(self._spark, f"mongoq {self._graph.name}: is all there", ready_for, self._order, 1)

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
                self._end_tasks()
            if self._broken is not None:
                raise self._broken
            for stop in self._scheduler.stops.values():
                cause = None if stop.cause is None else ExecutorError(stop.cause)
                raise StageStopped(stop.stage, stop.queue, stop.item_id) from cause
            for stopped in self._frame_stops.values():
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

    def _end_tasks(self) -> None:
        """End the running tasks and queries, and wait for them; tasks that do not end are cancelled.

        Raises:
            ExecutorError: Spark ended during the run, or tasks do not report that they have ended.
        """
        self._scheduler.end()
        if self._scheduler.is_at_work:
            try:
                # Tasks that do not read it end when their time is over.
                self._broker._run_within(SERVER_SECONDS, halt, self._order.run)
            except Exception as error:
                logger.warning("cannot ask the tasks of pipeline %r to end: %r", self._graph.name, error)
        self._end_queries(self._order.grace)
        if not self._scheduler.join(self._order.grace + SERVER_SECONDS):
            hint = "they are cancelled, and their items come back when their leases end"
            logger.warning("tasks of pipeline %r do not end; %s", self._graph.name, hint)
            try:
                cancel(self._spark, self._order)
            except Exception as error:
                logger.warning("the tasks could not be cancelled: %r", error)
            self._scheduler.join(SERVER_SECONDS)
        # After Spark has ended, it does not report on tasks any more: they release their items.
        if not has_ended(self._spark):
            return
        until = time.monotonic() + self._order.grace + SERVER_SECONDS
        tasks_left = True
        while tasks_left and time.monotonic() < until:
            try:
                tasks_left = self._broker._run_within(SERVER_SECONDS, workers_of, self._order.run) > 0
            except Exception as error:
                logger.warning("cannot read whether tasks of pipeline %r still run: %r", self._graph.name, error)
            if tasks_left:
                time.sleep(CHECK_SECONDS)
        if tasks_left:
            hint = "some of its tasks have not reported their end: their items come back when their leases end"
            raise ExecutorError(f"{ENDED}; {hint}")
        if not self._interrupted:
            raise ExecutorError(f"{ENDED}; its tasks have released the items that they had not settled")

    def _end_queries(self, grace: float) -> None:
        """Stop the queries in good order, each within ``grace`` seconds: the items that they hold are released."""
        for query in self._queries:
            try:
                query.stop(grace)
            except Exception as error:
                logger.warning("the query of stage %r could not be stopped in good order: %r", query.stage, error)
        self._look_at_queries()

    def _look_at_queries(self) -> None:
        """Update the counts of frame stages, and record the queries that have ended."""
        counted: dict[str, Counter[str]] = {}
        for query in self._queries:
            counted[query.stage] = counted.get(query.stage, Counter()) + query.counts
            error = query.find_failure()
            if not isinstance(error, StageStopped):
                self._frame_failure = self._frame_failure or error
            elif query.stage not in self._frame_stops:
                logger.error("stage %r has stopped by itself: %s", query.stage, error)
                self._frame_stops[query.stage] = error
        now = time.time()
        for stage, endings in counted.items():
            part = self._frame_counts.get(stage, PartCounts())
            if endings != part.endings:
                part = PartCounts(endings, first=part.first or now, last=now)
            # Replaced and never changed, since other threads read the counts.
            self._frame_counts = {**self._frame_counts, stage: replace(part, stopped=stage in self._frame_stops)}

    def _coordinate(self) -> None:
        """Report to the scheduler whether there is work, until the end of the run.

        With a trigger, the run works in rounds that begin ``every`` so often and last until nothing is ready.
        """
        pause = CHECK_SECONDS
        began = opens = time.monotonic()
        has_round = False
        while not self._stopping.wait(pause):
            if has_ended(self._spark):
                return
            self._look_at_queries()
            # All stages have stopped by themselves, or there are none, and no source goes on.
            idle = self._scheduler.sources_are_over and not self._scheduler.is_at_work
            frames_have_stopped = all(query.stage in self._frame_stops for query in self._queries)
            if (idle and self._scheduler.stages_have_stopped and frames_have_stopped) or self._broken:
                return
            stopped = self._scheduler.stops.keys() | self._frame_stops.keys()
            due = self._is_due(stopped)
            has_round = has_round or (due and time.monotonic() >= opens)
            self._scheduler.set_wanted(due and has_round)
            if due or self._scheduler.is_at_work:
                pause = CHECK_SECONDS
                continue
            # Nothing to do: check less often, up to MAX_CHECK_SECONDS.
            pause = min(pause * 2, MAX_CHECK_SECONDS)
            if self._every is not None and has_round:
                opens = began + ((time.monotonic() - began) // self._every + 1) * self._every
                has_round = False
            if self._drain and self._scheduler.sources_are_over and self._is_empty(stopped):
                return

    def _is_due(self, stopped: Collection[str]) -> bool:
        """Return whether an item is ready for tasks, at a stage that has not stopped by itself."""
        queues = list(dict.fromkeys(consumer.name for consumer in self._consumers if consumer.stage not in stopped))
        if not queues:
            return False
        try:
            whens = self._broker._run_within(SERVER_SECONDS, find_next_dues, queues)
        except Exception as error:
            return self._pause_after(error)
        self._coordinator.report_recovery("count")
        return any(when <= self._broker._context.clock.now() for when in whens.values())

    def _is_empty(self, stopped: Collection[str]) -> bool:
        """Return whether nothing is left. It checks twice: an item may have gone back to a queue checked before."""
        # Queues that have to be empty at the end, their leases, and True if scheduled items may stay.
        watched: list[tuple[Queue[Any], timedelta, bool]] = [
            (each.queue, each.lease_length, each.drains_with_scheduled)
            for each in self._consumers
            if each.stage not in stopped
        ]
        watched += [(queue, queue.settings.lease, False) for stage, queue in self._frames if stage.name not in stopped]
        try:
            return all(
                queue._run_within(SERVER_SECONDS, is_drained, lease, keeps_scheduled=keeps_scheduled)
                for queue, lease, keeps_scheduled in watched * 2
            )
        except Exception as error:
            return self._pause_after(error)

    def _pause_after(self, error: Exception) -> bool:
        """Pause after an error of the server; returns False, because nothing is known."""
        self._stopping.wait(self._coordinator.report_error("count", error) or 0)
        return False

    @property
    def _broken(self) -> BaseException | None:
        """Error that the run cannot go on with."""
        return self._scheduler.failure or self._frame_failure or self._coordinator.failure

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
                return self._make_progress(self._broker.stats(), ended=False)
            except BrokerClosed:  # the run has ended between the two lines
                self.wait()
        assert self._last is not None
        return self._last

    def _make_progress(self, depths: Mapping[str, QueueStats], *, ended: bool) -> Progress:
        counts = sum_counts([self._scheduler.counts, self._frame_counts])
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
