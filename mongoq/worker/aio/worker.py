"""Worker: registers consumers, and runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar, Unpack

from mongoq.aio import AsyncBroker, AsyncQueue
from mongoq.data.arguments import Duration, duration
from mongoq.data.outcomes import RetryPolicy
from mongoq.data.process import Health, Local
from mongoq.data.schedule.definition import Definition, Tick, define, function_name
from mongoq.data.schedule.timetable import Missed
from mongoq.data.settings import (
    DEFAULT,
    Default,
    SettingsFrom,
    check_burst,
    check_limit,
    check_options,
    check_source,
    only_given,
)
from mongoq.errors import ArgumentInvalid
from mongoq.worker.aio.engine import AsyncEngine
from mongoq.worker.consumer import (
    BROKER_HINT,
    PREFETCH_BYTES,
    Consumer,
    ConsumerOptions,
    Handler,
    Hook,
    LogErrors,
    OnTimeout,
    add_hooks,
    any_handler,
    check_hook,
    check_log_errors,
    consumer,
)
from mongoq.worker.signals import check_signals

H = TypeVar("H", bound=Handler)
K = TypeVar("K", bound=Hook)


class AsyncWorker(Local):
    """Runs handlers for the items of queues, until it is stopped.

    ```python
    worker = mongoq.AsyncWorker(broker)


    @worker.consumer("orders", concurrency=8)
    async def handle(payload): ...


    await worker.run()
    ```

    What a handler returns is success, and commits the item; an exception is a failure, and rolls it back, to be run
    again after a delay, or buried beyond its retries. An outcome says otherwise: ``Retry``, ``Dead``, ``Drop`` or
    ``Move``. A handler runs at least once for each item: what it has done when its process is killed is not undone, so
    it should bear with running twice.

    While handlers run, their leases are extended. An item whose last lease ran out may have killed its worker: it runs
    by itself, when nothing else of this worker runs or waits for a run, so that it takes nobody along.

    Args:
        broker: the ``AsyncBroker`` of the queues.
        grace: how long handlers may go on once the worker is told to stop, a ``timedelta`` or seconds.
        heartbeat: how often the worker says that it lives (``broker.workers()``), a ``timedelta`` or seconds.
        settings: which settings of its queues win, ``"stored"`` or those given in ``"code"``, as for the broker, whose
            choice holds by default. With ``"code"`` also ``lease`` and ``max_retries`` of its consumers are stored
            with their queues, at the first claim.
        log_errors: what logs say of the errors of handlers: type and ``"message"``; or the ``"type"`` and the place
            (file and line) alone, where messages may hold private data. Stored items keep the message either way.

    Raises:
        ArgumentInvalid: an argument cannot be used; it is named.
    """

    _elsewhere = (
        "it belongs to its process; let another one make a broker and a worker of its own, and register the handlers "
        "there, by a function of yours that takes the worker"
    )

    _coroutines = AsyncEngine.asynchronous
    """Handlers may be coroutine functions."""

    def __init__(
        self,
        broker: AsyncBroker,
        *,
        grace: Duration = 25,
        heartbeat: Duration = 5,
        settings: SettingsFrom | None = None,
        log_errors: LogErrors = "message",
    ) -> None:
        if not isinstance(broker, AsyncBroker):
            raise ArgumentInvalid("broker", f"{AsyncBroker.__name__}, not {type(broker).__name__}; {BROKER_HINT}")
        self._broker = broker
        self._grace = duration(grace, "grace")
        self._heartbeat = duration(heartbeat, "heartbeat", zero=False)
        self._settings_from = broker._context.settings_from if settings is None else check_source(settings)
        self._consumers: dict[str, Consumer] = {}
        self._schedules: dict[str, tuple[Definition, AsyncQueue[Any]]] = {}
        self._hooks: list[Hook] = []
        self._log_errors = check_log_errors(log_errors)
        self._engine: AsyncEngine | None = None

    def __repr__(self) -> str:
        """Name the queues it consumes."""
        return f"<{type(self).__name__} of {', '.join(self._consumers) or 'nothing'} in {self._broker.namespace}>"

    def consumer(
        self,
        queue: str | AsyncQueue[Any],
        *,
        concurrency: int = 1,
        prefetch: int | None = None,
        prefetch_bytes: int | None = PREFETCH_BYTES,
        lease: Duration | None = None,
        retry: RetryPolicy | None = None,
        max_retries: int | Default | None = DEFAULT,
        success_on: type[BaseException] | Sequence[type[BaseException]] = (),
        max_time: Duration | None = None,
        on_timeout: OnTimeout = "log",
        batch: int | None = None,
        probe: bool = False,
        max_running: int | Default | None = DEFAULT,
        rate: str | Default | None = DEFAULT,
        burst: int | Default | None = DEFAULT,
        rate_key: str | Callable[[Any], Any] | None = None,
    ) -> Callable[[H], H]:
        """Register the decorated function as the handler of a queue; it is returned as it is.

        It is called with the payload, or with the payload and the job: ``handle(payload)``, ``handle(payload, job)``.
        A plain function runs in a thread.

        Args:
            queue: its name, or a handle, whose model then makes the payloads.
            concurrency: how many runs at a time, at most.
            prefetch: how many further items are reserved and wait for a run, at most. Default as many as are worked off
                in a moment, up to 2,000.
            prefetch_bytes: nothing more is reserved while the items that are held, running ones and those about to be
                settled included, have so many bytes as BSON; ``None`` for no limit. One item can always run, however
                large it is; batches are smaller where items are large.
            lease: how long an item stays reserved when the worker dies, a ``timedelta`` or seconds; default the
                queue's. It is extended while the handler runs, however long that takes.
            retry: how long a failed item waits for its next run: ``Fixed``, ``Linear`` or ``Exponential``, which is the
                default.
            max_retries: how many further runs an item gets after its first, here and whatever the queue says; ``None``
                for no limit.
            success_on: exceptions that count as success, such as a conflict with what an earlier run has written.
            max_time: the stack of a handler that runs longer is logged as an error, then and at each doubling; a
                ``timedelta`` or seconds. Without it, a warning after five minutes and at each doubling.
            on_timeout: what becomes of its items then. ``"log"``: they stay reserved for as long as it runs.
                ``"release"``: their leases are extended no more, so that they come again when these end, the attempt
                counted; ``job.lost`` is set, and what the handler returns is ignored. ``"cancel"``: a coroutine is
                cancelled as well, and has failed with a ``TimeoutError``; a plain function cannot be. A crash leaves
                the items to their leases in any case.
            batch: the handler takes a list of up to so many payloads (and ``job.items``), and returns ``None``, or a
                list with an entry for each: ``None``, an outcome or an exception.
            probe: when different items fail, with no success between, the other side is down: one item at a time is
                tried, another one each time, and these failures use up no attempts; the first success ends that.
            max_running: how many items of the queue run at a time, over the workers of all processes. This and the
                next two are settings of the queue: they are stored with it unless they are stored already, in which
                case the stored ones hold, with a warning; ``queue.configure`` changes them at run time.
            rate: how many items may start in a time, over all processes: ``"100/m"``, ``"5/s"``, ``"1000/h"`` or
                ``"10/30s"``. In any time T at most ``burst + T * rate`` items start.
            burst: how many may start at once; default as many as the rate allows in a quarter of a second, at least
                one.
            rate_key: each key has the rate to itself: a function of the payload, or the dotted name of a field of it.
                An item whose key has no start left goes back until there is one, no attempt counted.

        Raises:
            ArgumentInvalid: an option cannot be used, or the queue has a consumer in this worker already.
            QueueNameInvalid: the name cannot be stored.
        """
        limits = only_given(max_running=max_running, rate=rate, burst=burst)
        handle = self._handle(queue, lease, max_retries, limits)
        options: dict[str, Any] = {
            "concurrency": concurrency,
            "prefetch": prefetch,
            "lease": lease,
            "retry": retry,
            "success_on": success_on,
            "max_time": max_time,
            "on_timeout": on_timeout,
            "prefetch_bytes": prefetch_bytes,
            "batch": batch,
            "probe": probe,
            "rate_key": rate_key,
            "coroutines": self._coroutines,
        }
        consumer(handle, any_handler, **{**options, "coroutines": True})  # a bad option is told at once

        def register(handler: H) -> H:
            added = consumer(handle, handler, **options)
            if self._engine is not None:
                raise ArgumentInvalid("queue", f"{added.name!r} comes too late: the worker runs already")
            if added.name in self._consumers:
                raise ArgumentInvalid("queue", f"{added.name!r} has a consumer in this worker already")
            self._consumers[added.name] = added
            return handler

        return register

    def schedule(
        self,
        name: str,
        *,
        queue: str | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        every: Duration | None = None,
        start: datetime | None = None,
        at: datetime | None = None,
        headers: Mapping[str, Any] | None = None,
        priority: int = 0,
        missed: Missed = "last",
        horizon: Duration | None = None,
        jitter: Duration | None = None,
        expires: Duration | None = None,
        version: int = 0,
        **consumer: Unpack[ConsumerOptions],
    ) -> Callable[[H], H]:
        """Register the decorated function to be called by a timetable; it is returned as it is.

        ```python
        @worker.schedule("report", cron="0 6 * * *", timezone="Europe/Berlin")
        async def report(tick): ...
        ```

        The schedule pushes an item into a queue at each tick, and this worker consumes that queue. So the function is a
        handler like others: it is called with the ``mongoq.Tick``, or with the tick and the job, is retried, and buried
        beyond its retries. The worker stores the definition when it starts (``broker.schedule`` tells by which rules),
        and any worker of the collection makes the ticks. Where this process is killed, others go on.

        Args:
            name: name of the schedule.
            queue: queue of its items; default the name of the schedule.
            cron: as for ``broker.schedule``, like all that is not named here.
            timezone: see there.
            every: see there.
            start: see there.
            at: see there.
            headers: see there.
            priority: see there.
            missed: see there.
            horizon: see there.
            jitter: see there.
            expires: see there.
            version: see there.
            consumer: all options of ``consumer`` beside the queue, such as ``retry`` or ``max_running``.

        Raises:
            ArgumentInvalid: an argument cannot be used, the worker has this schedule already, or a consumer of its
                queue.
            QueueNameInvalid: a name cannot be stored.
            TypeError: neither a schedule nor a consumer has the argument.
            ModuleNotFoundError: ``cron`` without the extra ``schedules``.
        """
        if unknown := consumer.keys() - ConsumerOptions.__annotations__.keys():
            raise TypeError(f"{type(self).__name__}.schedule() got an unexpected keyword argument {min(unknown)!r}")
        model: Any = Tick
        handle = self._broker.queue(name if queue is None else queue, model=model)
        encoding = self._broker._context.encoding
        options: dict[str, Any] = {"queue": handle.name, "cron": cron, "timezone": timezone, "every": every}
        options |= {"start": start, "at": at, "headers": headers, "priority": priority, "missed": missed}
        options |= {"horizon": horizon, "jitter": jitter, "expires": expires, "version": version, "payload": DEFAULT}
        definition = define(name, encoding, handle._context.codec, **options)  # a bad option is told at once
        if name in self._schedules:
            raise ArgumentInvalid("name", f"this worker has a schedule {name!r} already")
        register = self.consumer(handle, **consumer)

        def add(handler: H) -> H:
            register(handler)
            own = replace(definition, function=function_name(handler))
            self._add_schedule(own, handle)
            return handler

        return add

    def around(self, hook: K) -> K:
        """Register a context manager around each call of a handler of this worker; the function is returned as it is.

        ```python
        @worker.around
        @contextlib.contextmanager
        def timed(job):
            began = time.monotonic()
            try:
                yield
            finally:
                print(job.item.queue, job.item.id, time.monotonic() - began)
        ```

        ``hook(job)`` is called before each run, and the context manager that it returns is entered before the handler
        and left after it, with its exception if it has raised one. It runs in the thread or task of the handler, and in
        its context: context variables that it sets are seen by the handler. ``job`` has the items, and at the end what
        the handler has ``returned``. Of several, the first registered is the outermost. They hold for all consumers,
        whenever these are registered.

        - An exception of the hook, before or after the handler, fails the run like one of the handler; before it, the
          handler is not called.
        - A context manager that suppresses an exception makes the run a success, as if the handler had returned
          ``None``.
        - A batch is one call. The time limit ``max_time`` covers the hooks as well, and a cancellation reaches them as
          ``CancelledError``. An item that is run at most once has left its queue before.
        - A child that a handler forks ends at the end of the handler, without the rest of the context managers.

        Coroutine functions may have asynchronous context managers as well; plain functions may not.

        Args:
            hook: a function, or a class, that takes the job and returns a context manager.

        Raises:
            ArgumentInvalid: it cannot be a hook, or the worker runs already.
        """
        check_hook(hook, coroutines=self._coroutines)
        if self._engine is not None:
            raise ArgumentInvalid("around", "this comes too late: the worker runs already")
        self._hooks.append(hook)
        return hook

    def _handle(
        self, queue: str | AsyncQueue[Any], lease: Any, max_retries: Any, limits: Mapping[str, Any]
    ) -> AsyncQueue[Any]:
        """Return a queue handle with the consumer's own settings; it stores limits, and all if settings in code win."""
        handle = queue if isinstance(queue, AsyncQueue) else self._broker.queue(queue)
        if handle._context.broker is not self._broker._context:
            raise ArgumentInvalid("queue", f"{handle!r} belongs to another broker than the worker's")
        overriding = check_options(handle.name, max_retries=max_retries)
        check_limit(handle.name, overriding, dead=handle.settings.dead)
        own = check_options(handle.name, **limits)
        check_burst(own, rate=handle.settings.rate)
        if self._settings_from == "stored" and not overriding and not own:
            return handle
        options = handle._context.options
        if self._settings_from == "code":
            own |= check_options(handle.name, lease=lease, max_retries=max_retries)
        options = replace(options, given={**options.given, **own})
        return handle._with(options=options, overriding=overriding, settings_from=self._settings_from)

    def _add_schedule(self, definition: Definition, queue: AsyncQueue[Any]) -> None:
        """Keep a schedule, to define it when the worker starts."""
        self._schedules[definition.name] = definition, queue

    async def run(self, *, drain: bool = False, signals: bool = True) -> None:
        """Work until SIGTERM, SIGINT or ``stop``, then end in good order.

        It takes nothing more, gives back what it has not started, lets handlers go on for the grace, and gives back
        the items of those that have not ended by then. A second signal ends it at once. What was acknowledged to
        nobody is run again by another worker; nothing is lost either way.

        The server may go away for a while, or not be there yet: the worker says so once, goes on trying, and says when
        it is back. When the process is killed, its items come back when their leases end.

        Args:
            drain: end by itself when the queues are empty: nothing is ready, scheduled or reserved in any of them.
            signals: hear SIGTERM and SIGINT, where this is the main thread, and call the handlers that were installed
                before as well; they are put back at the end. What one of them raises, such as ``SystemExit``, is raised
                when the worker has ended. ``False``: leave signals alone, in the process of a web server for instance,
                which calls ``stop``.

        Raises:
            ArgumentInvalid: there is no consumer, the worker runs already, its broker is a virtual one, or it has an
                asynchronous context manager ``around`` a plain function.
            BrokerClosed: the broker was closed meanwhile.
            CollectionUnsuitable: the collection cannot be used, or was written by a later mongoq.

        What else the server refuses at the start is raised, such as a user who may not do it; also later, if no command
        of this kind has succeeded before.
        """
        if not self._consumers:
            raise ArgumentInvalid("worker", "it has no consumers; register one with @worker.consumer(queue)")
        if self._engine is not None:
            raise ArgumentInvalid("worker", "it runs already")
        if not isinstance(drain, bool):
            raise ArgumentInvalid("drain", f"a bool, not {type(drain).__name__}")
        check_signals(signals)
        if self._broker._context.serverless:
            raise ArgumentInvalid("worker", "it needs a server to run; mongoq.testing runs handlers without one")
        consumers = [add_hooks(each, self._hooks) for each in self._consumers.values()]
        options: dict[str, Any] = {"grace": self._grace, "heartbeat": self._heartbeat, "log_errors": self._log_errors}
        options["schedules"] = list(self._schedules.values())
        self._engine = engine = AsyncEngine(self._broker, consumers, **options)
        try:
            await engine.run(drain=drain, signals=signals)
        finally:
            self._engine = None

    def health(self) -> Health:
        """Return whether this worker runs, is connected, consumes and does not stop, with the reasons if not.

        It asks no server, and may be called from any thread: a worker notices an outage by its own commands, at the
        latest by a heartbeat. ``mongoq.monitoring.HealthServer`` answers probes with it.
        """
        engine = self._engine
        return Health.of(["the worker does not run"]) if engine is None else engine.health()

    def stop(self) -> None:
        """End as on SIGTERM, from any thread or from a handler; the second time at once. Nothing if it does not run.

        The first call after a signal counts with that as one.
        """
        if self._engine is not None:
            self._engine.stop()
