"""Start of a pipeline: in threads, with asyncio or on Spark, until it is stopped or nothing is left."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import timedelta
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mongoq.aio import AsyncBroker
from mongoq.connection import COLLECTION
from mongoq.errors import ArgumentInvalid, GraphInvalid
from mongoq.model.arguments import Duration, duration
from mongoq.pipeline.checks.graph import faults
from mongoq.pipeline.declare import Declarations
from mongoq.pipeline.run.progress import Progress
from mongoq.pipeline.run.progress_table import show_progress, show_progress_async
from mongoq.pipeline.run.run import AsyncRun, Run
from mongoq.sync import Broker
from mongoq.worker.signals import check_signals, stop_on_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mongoq.pipeline.on_spark.run import SparkRun

__all__ = ["Starting"]

GRACE = 25
HEARTBEAT = 5


class Starting(Declarations):
    """Base of ``Pipeline``: checks what is declared, and starts runs of it."""

    def check(self) -> None:
        """Raise an error if the pipeline has faults; asks no server.

        Raises:
            GraphInvalid: the pipeline has faults; the error lists all of them.
        """
        found = faults(self.graph)
        if found:
            raise GraphInvalid(self.name, found)

    def start(
        self,
        broker: Broker,
        *,
        stages: Sequence[str] | None = None,
        grace: Duration = GRACE,
        heartbeat: Duration = HEARTBEAT,
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
        grace: Duration = GRACE,
        heartbeat: Duration = HEARTBEAT,
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

    def _make_run(
        self, broker: Broker, stages: Sequence[str] | None, *, grace: Duration, heartbeat: Duration, signals: bool
    ) -> Run:
        self.check()
        _check_broker(broker, Broker, AsyncBroker, "start_async and drain_async")
        check_signals(signals)
        return Run(self.graph.only(stages), broker, **_lengths(grace, heartbeat), signals=signals)

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
        grace: Duration = GRACE,
        heartbeat: Duration = HEARTBEAT,
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
            SparkUnavailable: pyspark or pyarrow is not installed.
            FilterInvalid: the server refuses a ``where``.
            ArgumentInvalid: another argument is invalid; the error names it.

        And the errors of ``connect``.
        """
        # Imported here: pipelines without Spark must not need pyspark.
        from mongoq.pipeline.on_spark import run_of
        from mongoq.spark.raw_options import Location

        self.check()
        check_signals(signals)
        return run_of(
            self.graph.only(stages),
            spark,
            Location(uri, database, collection),
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
        grace: Duration = GRACE,
        heartbeat: Duration = HEARTBEAT,
        signals: bool = True,
    ) -> StartingAsync:
        """Start as ``start`` does, with asyncio: ``async with pipeline.start_async(broker) as run``, or ``await`` it.

        Handlers may be coroutine functions; plain functions run in threads.
        """
        return StartingAsync(self, broker, stages, drain=False, grace=grace, heartbeat=heartbeat, signals=signals)

    async def drain_async(
        self,
        broker: AsyncBroker,
        *,
        progress: bool = False,
        stages: Sequence[str] | None = None,
        grace: Duration = GRACE,
        heartbeat: Duration = HEARTBEAT,
        signals: bool = True,
    ) -> Progress:
        """Run as ``drain`` does, with asyncio."""
        _check_progress(progress)
        lengths: dict[str, Any] = {"grace": grace, "heartbeat": heartbeat}
        async with StartingAsync(self, broker, stages, drain=True, signals=signals, **lengths) as run:
            if progress:
                await show_progress_async(self.graph.name, run)
            await run.wait()
            return await run.progress()


class StartingAsync:
    """A pipeline about to start: ``await`` it, or use it as ``async with``."""

    def __init__(
        self,
        pipeline: Starting,
        broker: AsyncBroker,
        stages: Sequence[str] | None,
        *,
        drain: bool,
        grace: Duration,
        heartbeat: Duration,
        signals: bool,
    ) -> None:
        self._pipeline = pipeline
        self._stages = stages
        self._broker = broker
        self._drain = drain
        self._lengths = grace, heartbeat
        self._signals = signals
        self._run: AsyncRun | None = None

    def __await__(self) -> Generator[Any, None, AsyncRun]:
        """Start the run."""
        return self._start_run().__await__()

    async def _start_run(self) -> AsyncRun:
        self._pipeline.check()
        _check_broker(self._broker, AsyncBroker, Broker, "start and drain")
        check_signals(self._signals)
        graph, lengths = self._pipeline.graph.only(self._stages), _lengths(*self._lengths)
        return await AsyncRun.start(graph, self._broker, drain=self._drain, signals=self._signals, **lengths)

    async def __aenter__(self) -> AsyncRun:
        """Start the run; it is stopped at the end of the block."""
        self._run = await self._start_run()
        return self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the run, and wait for its end."""
        if self._run is not None:
            await self._run.__aexit__(kind, error, trace)


def _check_broker(broker: Any, kind: type[Any], other: type[Any], methods: str) -> None:
    if isinstance(broker, other):
        raise ArgumentInvalid("broker", f"{kind.__name__}, not {other.__name__}, which goes with {methods}")
    if not isinstance(broker, kind):
        raise ArgumentInvalid("broker", f"{kind.__name__}, not {type(broker).__name__}")
    if broker._context.serverless:
        hint = "virtual.worker(pipeline).run_until_idle() of mongoq.testing runs a pipeline without one"
        raise ArgumentInvalid("broker", f"a pipeline needs a server to run; {hint}")


def _check_progress(progress: Any) -> None:
    if not isinstance(progress, bool):
        raise ArgumentInvalid("progress", f"a bool, not {type(progress).__name__}")


def _lengths(grace: Duration, heartbeat: Duration) -> dict[str, timedelta]:
    return {"grace": duration(grace, "grace"), "heartbeat": duration(heartbeat, "heartbeat", zero=False)}
