"""How a pipeline is set to work: in threads or with asyncio, until it is stopped or nothing is left."""

from __future__ import annotations

from collections.abc import Generator
from datetime import timedelta
from types import TracebackType
from typing import Any

from mongoq.aio import AsyncBroker
from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import Duration, duration
from mongoq.pipeline.display import shown, shown_async
from mongoq.pipeline.graph import Graph
from mongoq.pipeline.progress import Progress
from mongoq.pipeline.runs import AsyncRun, Run
from mongoq.sync import Broker

__all__ = ["Starting"]

GRACE = 25
HEARTBEAT = 5


class Starting:
    """The side of a pipeline that runs; part of ``Pipeline``."""

    @property
    def graph(self) -> Graph:
        """All that it was told."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise ``GraphInvalid`` with all that is wrong with it."""

    def start(self, broker: Broker, *, grace: Duration = GRACE, heartbeat: Duration = HEARTBEAT) -> Run:
        """Set the stages to work in threads of this process, and return the run at once.

        Several processes may run the same pipeline. When one is killed, its items come back when their leases end.

        Args:
            broker: the ``Broker`` of the queues.
            grace: how long handlers may go on once the run is told to stop, a ``timedelta`` or seconds.
            heartbeat: how often the run says that it lives (``broker.workers()``), a ``timedelta`` or seconds.

        Raises:
            GraphInvalid: the stages do not go together, or a handler is a coroutine function; all faults at once.
            FilterInvalid: the server refuses a ``where``.
            ArgumentInvalid: another argument cannot be used; it is named.

        Errors of the server are raised when it cannot be reached.
        """
        return self._started(broker, drain=False, grace=grace, heartbeat=heartbeat)

    def drain(
        self,
        broker: Broker,
        *,
        progress: bool = False,
        grace: Duration = GRACE,
        heartbeat: Duration = HEARTBEAT,
    ) -> Progress:
        """Run the stages until nothing is ready, scheduled or reserved in any of their queues; returns the progress.

        SIGTERM or Ctrl-C in the main thread ends it before, in good order; ``interrupted`` of the progress says so.

        Args:
            broker: the ``Broker`` of the queues.
            progress: show a table on the terminal meanwhile; needs the extra ``progress``.
            grace: as for ``start``.
            heartbeat: as for ``start``.

        Raises:
            StageStopped: a stage has stopped by itself; the others have drained their queues.
            ModuleNotFoundError: ``progress`` needs rich, which is not installed.

        And what ``start`` raises.
        """
        _check_progress(progress)
        with self._started(broker, drain=True, grace=grace, heartbeat=heartbeat) as run:
            if progress:
                shown(self.graph.name, run)
            run.wait()
            return run.progress()

    def _started(self, broker: Broker, *, drain: bool, grace: Duration, heartbeat: Duration) -> Run:
        self.check()
        _check_broker(broker, Broker, AsyncBroker, "start_async and drain_async")
        return Run(self.graph, broker, drain=drain, **_lengths(grace, heartbeat))

    def start_async(
        self, broker: AsyncBroker, *, grace: Duration = GRACE, heartbeat: Duration = HEARTBEAT
    ) -> StartingAsync:
        """Do as ``start``, with asyncio: ``async with pipeline.start_async(broker) as run``, or ``await`` it.

        Handlers may be coroutine functions; plain ones run in threads.
        """
        return StartingAsync(self, broker, drain=False, grace=grace, heartbeat=heartbeat)

    async def drain_async(
        self,
        broker: AsyncBroker,
        *,
        progress: bool = False,
        grace: Duration = GRACE,
        heartbeat: Duration = HEARTBEAT,
    ) -> Progress:
        """Do as ``drain``, with asyncio."""
        _check_progress(progress)
        async with StartingAsync(self, broker, drain=True, grace=grace, heartbeat=heartbeat) as run:
            if progress:
                await shown_async(self.graph.name, run)
            await run.wait()
            return await run.progress()


class StartingAsync:
    """A pipeline about to start: ``await`` it, or use it as ``async with``."""

    def __init__(
        self, pipeline: Starting, broker: AsyncBroker, *, drain: bool, grace: Duration, heartbeat: Duration
    ) -> None:
        self._pipeline = pipeline
        self._broker = broker
        self._drain = drain
        self._lengths = grace, heartbeat
        self._run: AsyncRun | None = None

    def __await__(self) -> Generator[Any, None, AsyncRun]:
        """Start."""
        return self._started().__await__()

    async def _started(self) -> AsyncRun:
        self._pipeline.check()
        _check_broker(self._broker, AsyncBroker, Broker, "start and drain")
        lengths = _lengths(*self._lengths)
        return await AsyncRun.start(self._pipeline.graph, self._broker, drain=self._drain, **lengths)

    async def __aenter__(self) -> AsyncRun:
        """Start, and stop at the end of the block."""
        self._run = await self._started()
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
