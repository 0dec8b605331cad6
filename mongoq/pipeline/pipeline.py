"""The pipeline: declares stages and checks, describes, compares and runs them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

from mongoq.aio import AsyncBroker
from mongoq.connection import COLLECTION
from mongoq.data.arguments import Duration, duration
from mongoq.errors import ArgumentInvalid, GraphInvalid
from mongoq.pipeline.checks import faults
from mongoq.pipeline.declare import Declarations, H, Names
from mongoq.pipeline.graph.graph import DEFAULT_BATCH, DEFAULT_LEASE_SECONDS, Graph, Source, Trail, Waiting
from mongoq.pipeline.graph.handlers import handler_name, names, quote_if_odd
from mongoq.pipeline.recipe import graph_of
from mongoq.pipeline.render import Difference, description, differences, mermaid
from mongoq.pipeline.run.run import AsyncRun, Progress, Run, StartingAsync, show_progress, show_progress_async
from mongoq.sync import Broker
from mongoq.worker.consumer import Hook, LogErrors, check_hook
from mongoq.worker.signals import check_signals, stop_on_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mongoq.pipeline.on_spark.run import SparkRun

K = TypeVar("K", bound=Hook)

DRAIN_GRACE_SECONDS = 25
HEARTBEAT_SECONDS = 5


class Pipeline(Declarations):
    """Stages, each of which takes items from queues and sends them on to others, and sources, which make items.

    ```python
    pipeline = mongoq.Pipeline("flights", errors="flights.errors")


    @pipeline.stage("raw", to="checked", model=Flight)
    def check(flight): ...


    @pipeline.sink("checked")
    def load(flight): ...
    ```

    Stages may be declared in any order, and items may go in loops. The declarations are not checked one by one:
    ``check`` reports all faults at once. A pipeline is a description, without any state of its runs.

    Args:
        name: name in messages, a text of up to 120 bytes.
        errors: the queue for items that have failed for good; by default a stage stops at such an item.
        inputs: the queues that items enter the pipeline by, a name or several; default the queues that stages read and
            no stage or source writes.
        outputs: the queues that readers outside the pipeline take items from, a name or several.
        trail: record each hop on the item; ``"payloads"``: with the payload before it.
        log_errors: what logs say of the errors of handlers and sources: type and ``"message"``; or the ``"type"`` and
            the place (file and line) alone, as for ``Worker``.
    """

    def __init__(
        self,
        name: str,
        *,
        errors: str | None = None,
        inputs: Names | None = None,
        outputs: Names = (),
        trail: Trail = False,
        log_errors: LogErrors = "message",
    ) -> None:
        super().__init__()
        self._whole = Graph(
            name=name,
            stages=(),
            errors=errors,
            inputs=None if inputs is None else names(inputs),
            outputs=names(outputs),
            trail=trail,
            log_errors=log_errors,
        )
        self._sources: list[Source] = []
        self._hooks: list[Hook] = []
        self._spark_setup: str | None = None

    def __repr__(self) -> str:
        """Return the pipeline's name and its stages, as text."""
        stages = ", ".join(quote_if_odd(stage.name) for stage in self._stages)
        return f"<{type(self).__name__} {self.name!r} of {stages or 'no stages'}>"

    @property
    def name(self) -> str:
        """Name of the pipeline in messages."""
        return self._whole.name  # type: ignore[no-any-return]  # checked later

    @property
    def graph(self) -> Graph:
        """Stages and sources declared so far, as plain data."""
        # A new graph at each call: declarations may follow, and a graph is immutable.
        hooks = (*self._whole.hooks, *self._hooks)
        return replace(self._whole, stages=tuple(self._stages), sources=tuple(self._sources), hooks=hooks)

    def source(
        self,
        *,
        to: str,
        name: str | None = None,
        batch: int = DEFAULT_BATCH,
        every: Duration | None = None,
        lease: Duration = DEFAULT_LEASE_SECONDS,
    ) -> Callable[[H], H]:
        """Declare a source: a generator function that yields ``Record``; the function is returned unchanged.

        The run calls it with the stored position of the last record, ``None`` the first time. Records are pushed in
        batches; one transaction holds a batch and the position of its last record (``update``, ``insert``), so a
        replica set is needed. When a process is killed, its committed batches stay, and the next process continues
        behind them: no record is lost or pushed twice. One process at a time runs the source; others wait until it or
        its lease ends.

        The source stops when it raises an error or yields a record that cannot be pushed; earlier records are pushed.

        Args:
            to: the queue that items go to. If it is a topic, copies go to all queues bound to it. The payloads have to
                fit the model of the stages that take items from it, if these stages have one common model.
            name: unique within the pipeline; default the name of the function. The position is stored under this name.
            batch: records of one transaction, at most 10,000. A batch is smaller when records come slowly or are more
                than 8 MiB.
            every: pause between the end of a call and the next call, which gets the position stored by then; a
                ``timedelta`` or seconds. ``None``: one call in this run. A ``drain`` calls it once.
            lease: how long the source stays with a process that has died, a ``timedelta`` or seconds. The lease is
                extended while the source runs.
        """

        def declare(handler: H) -> H:
            own = handler_name(handler) if name is None else name
            self._sources.append(Source(own, to, handler, batch, every, lease))
            return handler

        return declare

    def around(self, hook: K) -> K:
        """Register a context manager around each call of a handler of this pipeline; the function is returned as it is.

        It works as ``Worker.around`` does, in every run: in threads, with asyncio, on Spark (where it is sent to the
        executors along with the handlers) and in tests. Functions of sources and of ``frame_stage`` are not called
        item by item, and have none. ``compare`` does not look at it.

        Raises:
            ArgumentInvalid: it cannot be a hook.
        """
        check_hook(hook, coroutines=True)
        self._hooks.append(hook)
        return hook

    def describe(self) -> str:
        """Return the pipeline as plain text, source by source and stage by stage; also if it has faults."""
        return description(self.graph)

    def to_mermaid(self) -> str:
        """Return the pipeline as a flowchart for Mermaid.

        Stages are boxes, queues are rounded, sources are cylinders; routes of errors and of ``otherwise`` are dashed.
        """
        return mermaid(self.graph)

    def compare(self, other: Pipeline) -> list[Difference]:
        """Return the differences of another pipeline: its own settings, then sources and stages by name, then queues.

        Handlers are compared by their import path, such as ``app.stages:check``. The order of stages, and of the queues
        of a stage, makes no difference.

        Raises:
            ArgumentInvalid: ``other`` is not a pipeline.
        """
        if not isinstance(other, Pipeline):
            raise ArgumentInvalid("other", f"a Pipeline, not {type(other).__name__}")
        return differences(self.graph, other.graph)

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any] | str | PathLike[str]) -> Pipeline:
        """Return the pipeline that a recipe describes, checked; see [recipes](recipes.md).

        The handlers and models that a recipe names are imported, so use only recipes that you trust as much as code.

        Args:
            recipe: a mapping, or the path of a file: ``.yaml`` or ``.yml``, which need PyYAML, or ``.json``; at most 1
                MiB.

        Raises:
            GraphInvalid: the recipe cannot be read, an import fails, or the pipeline has faults; the error lists all
                faults.
            ArgumentInvalid: the argument is neither, or PyYAML is not installed.
            OSError: the file cannot be opened.
        """
        graph = graph_of(recipe)
        pipeline = cls(graph.name)
        pipeline._whole, pipeline._stages, pipeline._sources = graph, list(graph.stages), list(graph.sources)
        return pipeline

    def check(self) -> None:
        """Raise an error if the pipeline has faults; asks no server.

        Raises:
            GraphInvalid: the pipeline has faults; the error lists all of them.
        """
        all_faults = faults(self.graph)
        if all_faults:
            raise GraphInvalid(self.name, all_faults)

    def start(
        self,
        broker: Broker,
        *,
        stages: Sequence[str] | None = None,
        grace: Duration = DRAIN_GRACE_SECONDS,
        heartbeat: Duration = HEARTBEAT_SECONDS,
        signals: bool = True,
    ) -> Run:
        """Start the stages in threads of this process, and return the run at once.

        Several processes may run the same pipeline. When one is killed, its items come back when their leases end.

        Args:
            broker: the ``Broker`` of the queues.
            stages: the names of the stages and sources to run; by default all. Others may run elsewhere.
            grace: how long handlers may go on after the run was asked to stop, a ``timedelta`` or seconds.
            heartbeat: interval of the run's heartbeats (``broker.workers()``), a ``timedelta`` or seconds.
            signals: react to SIGTERM and SIGINT while a caller waits for the run, as ``Worker.run`` does; ``False``:
                leave signals alone, for example in the process of a web server, which calls ``run.stop``.

        Raises:
            GraphInvalid: the pipeline has faults, or a handler is a coroutine function; all faults at once.
            FilterInvalid: the server refuses a ``where``.
            ArgumentInvalid: another argument is invalid; the error names it.

        While no server answers, the call waits for one, and logs it. Other errors of the server are raised.
        """
        return self._make_run(broker, stages, grace=grace, heartbeat=heartbeat, signals=signals)._start(drain=False)

    def drain(
        self,
        broker: Broker,
        *,
        progress: bool = False,
        stages: Sequence[str] | None = None,
        grace: Duration = DRAIN_GRACE_SECONDS,
        heartbeat: Duration = HEARTBEAT_SECONDS,
        signals: bool = True,
    ) -> Progress:
        """Run the stages until nothing is ready, scheduled or reserved in any of their queues; returns the progress.

        SIGTERM or Ctrl-C in the main thread ends the run earlier, in good order; then ``interrupted`` of the progress
        is true.

        Args:
            broker: the ``Broker`` of the queues.
            progress: show a table on the terminal meanwhile; needs the extra ``progress``.
            stages: as for ``start``; the run does not wait for queues of other stages.
            grace: as for ``start``.
            heartbeat: as for ``start``.
            signals: as for ``start``.

        Raises:
            StageStopped: a stage has stopped by itself; the others have drained their queues.
            ModuleNotFoundError: ``progress`` needs rich, which is not installed.

        And the errors of ``start``.
        """
        _check_progress(progress)
        run = self._make_run(broker, stages, grace=grace, heartbeat=heartbeat, signals=signals)
        # Signals first: one that comes while the threads start must stop the run as well.
        with stop_on_signals(run._hear, signals=signals), run._start(drain=True):
            if progress:
                show_progress(self.graph.name, run)
            run.wait()
            return run.progress()

    def _make_run(self, broker: Broker, stages: Sequence[str] | None, **options: Any) -> Run:
        graph, own = self._check_start(broker, stages, Broker, **options)
        return Run(graph, broker, **own)

    def _check_start(
        self,
        broker: Any,
        stages: Sequence[str] | None,
        kind: type[Any],
        *,
        grace: Duration,
        heartbeat: Duration,
        signals: bool,
    ) -> tuple[Graph, dict[str, Any]]:
        """Check the pipeline and the arguments of a start; return the graph and the options of the run."""
        self.check()
        if not isinstance(broker, kind):
            hint = "start and drain take a Broker, start_async and drain_async an AsyncBroker"
            raise ArgumentInvalid("broker", f"{kind.__name__}, not {type(broker).__name__}; {hint}")
        if broker._context.serverless:
            hint = "virtual.worker(pipeline).run_until_idle() of mongoq.testing runs a pipeline without one"
            raise ArgumentInvalid("broker", f"a pipeline needs a server to run; {hint}")
        check_signals(signals)
        lengths = {"grace": duration(grace, "grace"), "heartbeat": duration(heartbeat, "heartbeat", zero=False)}
        return self.graph.only(stages), {**lengths, "signals": signals}

    def run_on_spark(
        self,
        spark: SparkSession,
        uri: str,
        *,
        database: str | None = None,
        collection: str = COLLECTION,
        checkpoint: str | PathLike[str] | None = None,
        available_now: bool = False,
        trigger: Duration | None = None,
        tasks: int | None = None,
        stages: Sequence[str] | None = None,
        grace: Duration = DRAIN_GRACE_SECONDS,
        heartbeat: Duration = HEARTBEAT_SECONDS,
        signals: bool = True,
    ) -> SparkRun:
        """Start the stages in the executors of a Spark session, and return the run at once.

        Tasks of a few seconds work on the stages as workers do; each item leaves its queue by the same fenced update. A
        run that is killed and started again goes on with the items in the queues. Items that a killed process held come
        back when their leases end. Frame stages are streaming queries, and continue from their checkpoints.

        Args:
            spark: the session; its executors need mongoq, and the modules of the handlers.
            uri: a MongoDB connection string that executors can reach; it is sent to them, and never shown.
            database: the database; default the one in the URI, else ``mongoq``.
            collection: the collection that holds the queues.
            checkpoint: a folder that Spark can write to, and that is kept over restarts; only frame stages need it.
            available_now: end when nothing is ready, scheduled or reserved in any of their queues, as ``drain`` does.
            trigger: work in rounds: the interval between the beginnings of two rounds, a ``timedelta`` or seconds. A
                round lasts until nothing is ready, and Spark's slots are free between rounds. By default the run works
                whenever something is ready.
            tasks: number of tasks at the same time; by default the number of the session's cores.
            stages: the names of the stages and sources to run; by default all. Others may run elsewhere.
            grace: how long handlers and sources may go on after the run was asked to stop, a ``timedelta`` or seconds.
            heartbeat: interval of each task's heartbeats (``broker.workers()``), a ``timedelta`` or seconds.
            signals: as for ``start``.

        Raises:
            GraphInvalid: the pipeline has faults, a handler is a coroutine function, or cannot be sent to the
                executors; all faults at once.
            ExecutorsUnready: an executor cannot work on the pipeline; the error names what is missing there.
            SparkUnavailable: pyspark or pyarrow is not installed, or is too old.
            FilterInvalid: the server refuses a ``where``.
            ArgumentInvalid: another argument is invalid; the error names it.

        And the errors of ``connect``.
        """
        # Imported here: pipelines without Spark must not need pyspark.
        from mongoq.spark.raw_options import Location
        from mongoq.spark.versions import require

        self.check()
        check_signals(signals)
        require("running pipelines")  # raises SparkUnavailable, before anything of Spark is imported
        from mongoq.pipeline.on_spark.run import SparkRun

        return SparkRun(
            self.graph.only(stages),
            spark,
            Location(uri, database, collection, self._spark_setup),
            checkpoint=checkpoint,
            available_now=available_now,
            trigger=trigger,
            tasks=tasks,
            grace=grace,
            heartbeat=heartbeat,
            signals=signals,
        )

    def start_async(
        self,
        broker: AsyncBroker,
        *,
        stages: Sequence[str] | None = None,
        grace: Duration = DRAIN_GRACE_SECONDS,
        heartbeat: Duration = HEARTBEAT_SECONDS,
        signals: bool = True,
    ) -> StartingAsync:
        """Start as ``start`` does, with asyncio: ``async with pipeline.start_async(broker) as run``, or ``await`` it.

        Handlers may be coroutine functions; plain functions run in threads.
        """
        options: dict[str, Any] = {"grace": grace, "heartbeat": heartbeat, "signals": signals}
        return StartingAsync(partial(self._make_async_run, broker, stages, drain=False, **options))

    async def drain_async(
        self,
        broker: AsyncBroker,
        *,
        progress: bool = False,
        stages: Sequence[str] | None = None,
        grace: Duration = DRAIN_GRACE_SECONDS,
        heartbeat: Duration = HEARTBEAT_SECONDS,
        signals: bool = True,
    ) -> Progress:
        """Run as ``drain`` does, with asyncio."""
        _check_progress(progress)
        make = self._make_async_run(broker, stages, drain=True, signals=signals, grace=grace, heartbeat=heartbeat)
        async with await make as run:
            if progress:
                await show_progress_async(self.graph.name, run)
            await run.wait()
            return await run.progress()

    async def _make_async_run(
        self, broker: AsyncBroker, stages: Sequence[str] | None, *, drain: bool, **options: Any
    ) -> AsyncRun:
        graph, own = self._check_start(broker, stages, AsyncBroker, **options)
        return await AsyncRun.start(graph, broker, drain=drain, **own)

    def waiting(self, broker: Broker) -> Iterator[Waiting]:
        """Iterate over the items that wait for their partners, join by join, earliest timeout first.

        The items are read in pages by key (``find``), like ``queue.history``. Any process may call this, also while the
        pipeline does not run.
        """
        graph = self.graph
        for stage in graph.joins:
            for item in broker.queue(graph.waiting_queue(stage)).history(state=None):
                yield Waiting.of(stage, item)

    async def waiting_async(self, broker: AsyncBroker) -> AsyncIterator[Waiting]:
        """Iterate as ``waiting`` does, with asyncio: ``async for one in pipeline.waiting_async(broker)``."""
        graph = self.graph
        for stage in graph.joins:
            async for item in broker.queue(graph.waiting_queue(stage)).history(state=None):
                yield Waiting.of(stage, item)


def _check_progress(progress: Any) -> None:
    if not isinstance(progress, bool):
        raise ArgumentInvalid("progress", f"a bool, not {type(progress).__name__}")
