"""Consumers: a queue, its handler with the hooks around it, and the options, all checked at registration."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal, TypedDict, get_args

from mongoq.core.claim.worker_claims import ItemFilter
from mongoq.core.command import WakeEvent
from mongoq.core.state.context import QueueContext
from mongoq.data.arguments import Duration, count, duration
from mongoq.data.outcomes import Exponential, RetryPolicy
from mongoq.data.rate import RateKey, check_rate_key
from mongoq.data.settings import Default
from mongoq.errors import ArgumentInvalid
from mongoq.worker.outcome_resolver import OutcomeResolver, is_function, resolve_result
from mongoq.worker.run_context import ForkGuard

logger = logging.getLogger("mongoq.worker")


class SettleGroup:
    """Several consumers of an engine with one settle loop for the items of all of them.

    The loop takes the items that are ready, and waits for no consumer.

    Attributes:
        settle_event: wakes the settle loop.
    """

    def __init__(self) -> None:
        self.settle_event = WakeEvent()
        self._settlers: dict[str, Any] = {}

    def join(self, queue: str, settler: Any) -> Collection[Any]:
        """Add the settler of a consumer; returns a view of all settlers, of which the first one settles for all."""
        self._settlers[queue] = settler
        return self._settlers.values()

    def is_expecting(self, queue: str) -> bool:
        """Return whether more items of a queue are about to come."""
        settler = self._settlers.get(queue)
        return settler is not None and settler.is_expecting_items()


Handler = Callable[..., Any]
OnTimeout = Literal["log", "release", "cancel"]
LogErrors = Literal["message", "type"]
"""What logs say of an error: its type with its message, or its type and its place alone."""


class ConsumerOptions(TypedDict, total=False):
    """Options of ``AsyncWorker.consumer`` beside the queue, for methods that hand them on to it."""

    concurrency: int
    prefetch: int | None
    prefetch_bytes: int | None
    lease: Duration | None
    retry: RetryPolicy | None
    max_retries: int | Default | None
    success_on: type[BaseException] | Sequence[type[BaseException]]
    max_time: Duration | None
    on_timeout: OnTimeout
    batch: int | None
    probe: bool
    max_running: int | Default | None
    rate: str | Default | None
    burst: int | Default | None
    rate_key: str | Callable[[Any], Any] | None


BROKER_HINT = "Worker goes with Broker, and AsyncWorker with AsyncBroker"
DEFAULT_RESOLVER = OutcomeResolver()
MAX_CONCURRENCY = 1_000
MAX_ITEMS = 10_000
PREFETCH_BYTES = 64 * 1024 * 1024
"""Default limit for the bytes of the items that a consumer holds."""


@dataclass(frozen=True, slots=True, eq=False)
class Consumer:
    """Options of one consumer, checked and fixed at registration; durations are ``timedelta``.

    ``AsyncWorker.consumer`` describes those that users give; here are the others.

    Attributes:
        queue: queue handle, with the codec of its payloads.
        handler: function called with the payload, or a list of payloads; and with the job if it takes two arguments.
        asynchronous: True if the handler is a coroutine function.
        takes_job: True if the handler takes the job as well.
        stage: name of the pipeline stage, ``None`` outside of pipelines.
        item_filter: filter of the items, and the outcome of the others; ``None`` to take all.
        resolver: maps the result of a call to outcomes.
        pops: True if an item leaves the queue before its run, which therefore happens at most once.
        drains_with_scheduled: True if scheduled items of the queue do not keep a draining worker running.
        claims: context to claim from where no handler runs that could kill the worker: lapsed items are settled along
            with the others. ``None`` for the queue, where an item may have to run alone.
        settle_group: consumers whose items are settled together with this one's; ``None`` without others.
        rate_key: bucket of each item under the rate of the queue; ``None`` for one bucket of all.
        has_hooks: False if no hook is to be entered, since the handler does nothing: a side of a join.
        handler_name: module and qualified name of the handler that was registered, without hooks.
    """

    queue: Any
    handler: Handler
    asynchronous: bool
    takes_job: bool
    concurrency: int
    prefetch: int | None
    lease: timedelta | None
    retry: RetryPolicy
    success_on: tuple[type[BaseException], ...]
    max_time: timedelta | None
    batch: int | None
    probe: bool
    on_timeout: OnTimeout = "log"
    prefetch_bytes: int | None = PREFETCH_BYTES
    stage: str | None = None
    item_filter: ItemFilter | None = None
    resolver: OutcomeResolver = DEFAULT_RESOLVER
    pops: bool = False
    drains_with_scheduled: bool = False
    claims: QueueContext[Any] | None = None
    settle_group: SettleGroup | None = None
    has_hooks: bool = True
    rate_key: RateKey | None = None
    handler_name: str = ""

    @property
    def name(self) -> str:
        return self.queue.name  # type: ignore[no-any-return]

    @property
    def context(self) -> QueueContext[Any]:
        """The queue, with the consumer's own settings."""
        return self.queue._context  # type: ignore[no-any-return]

    @property
    def lease_length(self) -> timedelta:
        """Length of the consumer's reservations: its own, or else the queue's, which may change meanwhile."""
        return self.lease or self.context.settings.lease

    @property
    def label(self) -> str:
        """Name of the stage, or of the queue outside of pipelines; part of the delivery hash."""
        return self.stage or self.name

    @property
    def title(self) -> str:
        """Name of the consumer in logs."""
        return f"stage {self.stage!r}" if self.stage else f"queue {self.name!r}"

    def timeout_error(self, cause: BaseException | None = None) -> TimeoutError:
        """Return the error of a call beyond ``max_time``."""
        assert self.max_time is not None
        error = TimeoutError(f"the handler had not ended after max_time, {self.max_time.total_seconds():g} s")
        error.__cause__ = cause
        return error


def consumer(
    queue: Any,
    handler: Any,
    *,
    coroutines: bool,
    concurrency: int = 1,
    prefetch: int | None = None,
    prefetch_bytes: int | None = PREFETCH_BYTES,
    lease: Duration | None = None,
    retry: RetryPolicy | None = None,
    success_on: type[BaseException] | Sequence[type[BaseException]] = (),
    max_time: Duration | None = None,
    on_timeout: OnTimeout = "log",
    batch: int | None = None,
    probe: bool = False,
    rate_key: Any = None,
) -> Consumer:
    """Check the options and return a consumer; ``coroutines`` allows coroutine functions as handlers."""
    asynchronous, takes_job = _check_handler(handler, coroutines=coroutines)
    if not isinstance(probe, bool):
        raise ArgumentInvalid("probe", f"a bool, not {type(probe).__name__}")
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise ArgumentInvalid("retry", f"a policy such as Exponential(base=1), not {retry!r:.60}")
    limit = None if max_time is None else duration(max_time, "max_time", zero=False)
    if on_timeout not in get_args(OnTimeout):
        raise ArgumentInvalid("on_timeout", f"'log', 'release' or 'cancel', not {on_timeout!r:.60}")
    if on_timeout != "log" and limit is None:
        raise ArgumentInvalid("on_timeout", f"{on_timeout!r} needs a max_time; give both, or none")
    if on_timeout == "cancel" and not asynchronous:
        hint = "a thread cannot be cancelled; take on_timeout='release', or make it a coroutine function"
        raise ArgumentInvalid("on_timeout", f"{label_of(handler)} is a plain function, and {hint}")
    if rate_key is not None and batch is not None:
        raise ArgumentInvalid("rate_key", "the items of a batch start together; give batch= or rate_key=, not both")
    success = (success_on,) if isinstance(success_on, type) else success_on
    if not isinstance(success, tuple | list | set | frozenset):
        raise ArgumentInvalid("success_on", f"exception classes, such as (KeyError,), not {type(success_on).__name__}")
    for kind in success:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise ArgumentInvalid("success_on", f"exception classes, not {kind!r}")
    named: Any = handler
    while isinstance(named, partial):
        named = named.func
    named = named if getattr(named, "__qualname__", None) else type(named)
    module = getattr(named, "__module__", None) or "builtins"  # str.upper has none
    return Consumer(
        queue=queue,
        handler=handler,
        asynchronous=asynchronous,
        takes_job=takes_job,
        concurrency=check_range(concurrency, "concurrency", 1, MAX_CONCURRENCY),
        prefetch=None if prefetch is None else check_range(prefetch, "prefetch", 0, MAX_ITEMS),
        lease=None if lease is None else duration(lease, "lease", zero=False),
        retry=Exponential() if retry is None else retry,
        success_on=tuple(success),
        max_time=limit,
        batch=None if batch is None else check_range(batch, "batch", 1, MAX_ITEMS),
        probe=probe,
        on_timeout=on_timeout,
        prefetch_bytes=None if prefetch_bytes is None else count(prefetch_bytes, "prefetch_bytes"),
        rate_key=check_rate_key(rate_key),
        handler_name=f"{module}.{named.__qualname__}",
    )


CONSUMER_OPTIONS = frozenset(consumer.__kwdefaults__ or {})
"""Names of the options that ``consumer`` checks; the others of a stage or worker are settings of its queue."""


async def any_handler(_: Any) -> None:
    """Do nothing: a stand-in for checking options before the handler is known."""


def check_log_errors(value: Any) -> LogErrors:
    """Return the option; raises ``ArgumentInvalid`` for another value."""
    if value not in get_args(LogErrors):
        raise ArgumentInvalid("log_errors", f"'message' or 'type', not {value!r:.60}")
    return value  # type: ignore[no-any-return]


def check_range(value: Any, argument: str, least: int, most: int) -> int:
    number = count(value, argument, least=least)
    if number > most:
        raise ArgumentInvalid(argument, f"{most:,} at most, not {number:,}")
    return number


def _check_handler(handler: Any, *, coroutines: bool) -> tuple[bool, bool]:
    """Check a handler; returns whether it is a coroutine function, and whether it takes the job."""
    if not callable(handler):
        raise ArgumentInvalid("handler", f"a function, not {type(handler).__name__}")
    if is_function(inspect.isgeneratorfunction, handler) or is_function(inspect.isasyncgenfunction, handler):
        raise ArgumentInvalid("handler", f"{label_of(handler)} is a generator, which would run nothing; return instead")
    asynchronous = is_function(inspect.iscoroutinefunction, handler)
    if asynchronous and not coroutines:
        hint = (
            "an AsyncWorker runs it, or start_async and drain_async of its pipeline; here it is to be a plain function"
        )
        raise ArgumentInvalid("handler", f"{label_of(handler)} is a coroutine function; {hint}")
    expected = f"{label_of(handler)} is to take (payload) or (payload, job), and nothing else"
    with_job = takes_job(handler, 1, expected=expected)
    # Arguments may look as if the handler expects others: ``h(job)``, or ``h(sku, quantity)``.
    try:
        first, *others = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # no signature, or only *args
        return asynchronous, with_job
    if first.name == "job" and first.annotation is first.empty:
        text = "handler %s gets the payload as its argument 'job'; the job is a second argument: (payload, job)"
        logger.warning(text, label_of(handler))
    second = others[0] if others and with_job else None
    if second and second.name.strip("_") not in ("", "job") and second.annotation is second.empty:
        text = "handler %s gets the job as its argument %r; call it job, or take the payload as one argument"
        logger.warning(text, label_of(handler), second.name)
    return asynchronous, with_job


def takes_job(handler: Callable[..., Any], number: int, *, expected: str) -> bool:
    """Return whether a handler of ``number`` arguments takes the job as well.

    Raises:
        ArgumentInvalid: with the text ``expected``; it takes neither this number of arguments nor one more.
    """
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    by_place = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    required = sum(each.default is each.empty for each in by_place)
    needs_keyword = any(each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in parameters)
    takes_any_number = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    if needs_keyword or required > number + 1 or (len(by_place) < number and not takes_any_number):
        raise ArgumentInvalid("handler", expected)
    # An optional further argument is the job only if its name is job.
    return required == number + 1 or (len(by_place) > number and by_place[number].name == "job")


def label_of(handler: Any) -> str:
    return getattr(handler, "__qualname__", None) or type(handler).__name__


# --- hooks around handlers ---------------------------------------------------------------------

Hook = Callable[..., AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
"""Function or class that is called with the job of each run, and returns a context manager."""


def add_hooks(consumer: Consumer, hooks: Sequence[Hook]) -> Consumer:
    """Return a consumer with a handler that runs inside these hooks, the first one outermost.

    Without hooks it is the same consumer, so that a worker without any pays nothing. So is a side of a join, which
    calls no handler of a user.

    Raises:
        ArgumentInvalid: a hook makes asynchronous context managers, and the handler is a plain function.
    """
    if not (hooks and consumer.has_hooks):
        return consumer
    for hook in hooks if not consumer.asynchronous else ():
        if is_asynchronous(hook):
            problem = f"{label_of(hook)} makes asynchronous context managers, and the handler of {consumer.title}"
            hint = "make the handler a coroutine function, or the context manager a plain one"
            raise ArgumentInvalid("around", f"{problem} is a plain function; {hint}")
    handler = _hook_coroutine(consumer, hooks) if consumer.asynchronous else _hook_plain(consumer, hooks)
    return replace(consumer, handler=handler, takes_job=True)


def check_hook(hook: Any, *, coroutines: bool) -> None:
    """Refuse what cannot be a hook; ``coroutines`` allows asynchronous context managers.

    Raises:
        ArgumentInvalid: the text says what to change.
    """
    if not callable(hook):
        raise ArgumentInvalid("around", f"a function from the job to a context manager, not {type(hook).__name__}")
    if is_function(inspect.isgeneratorfunction, hook):
        raise ArgumentInvalid("around", f"{label_of(hook)} is a generator; decorate it with contextlib.contextmanager")
    if is_function(inspect.isasyncgenfunction, hook):
        hint = "decorate it with contextlib.asynccontextmanager"
        raise ArgumentInvalid("around", f"{label_of(hook)} is an asynchronous generator; {hint}")
    if is_function(inspect.iscoroutinefunction, hook):
        hint = "let it return a context manager, and decorate a generator with contextlib.asynccontextmanager"
        raise ArgumentInvalid("around", f"{label_of(hook)} is a coroutine function; {hint}")
    if not coroutines and is_asynchronous(hook):
        hint = "this worker runs threads and takes plain ones; an AsyncWorker takes both"
        raise ArgumentInvalid("around", f"{label_of(hook)} makes asynchronous context managers; {hint}")
    try:
        inspect.signature(hook).bind(None)
    except TypeError:
        raise ArgumentInvalid("around", f"{label_of(hook)} is to take the job, and nothing else") from None
    except ValueError:  # some functions written in C have no signature
        pass


def is_asynchronous(hook: Any) -> bool:
    """Return whether a hook is known to make asynchronous context managers only."""
    if isinstance(hook, type):
        return hasattr(hook, "__aenter__") and not hasattr(hook, "__enter__")
    return is_function(inspect.isasyncgenfunction, inspect.unwrap(hook))


def _hook_plain(consumer: Consumer, hooks: Sequence[Hook]) -> Handler:
    """Return a plain function that calls the handler inside hooks, all of which run in its thread.

    It returns ``None`` if a hook has suppressed an exception.
    """

    def handle(payload: Any, job: Any) -> Any:
        with ExitStack() as stack:
            for hook in hooks:
                stack.enter_context(hook(job))  # type: ignore[arg-type]  # another kind raises TypeError
            with ForkGuard():
                returned = consumer.handler(payload, job) if consumer.takes_job else consumer.handler(payload)
            return _resolve(consumer, job, returned)
        job._outcomes = None  # type: ignore[unreachable]  # a hook may suppress an exception
        return None

    return handle


def _hook_coroutine(consumer: Consumer, hooks: Sequence[Hook]) -> Handler:
    """Return the same as a coroutine function; all hooks run in its task."""

    async def handle(payload: Any, job: Any) -> Any:
        async with AsyncExitStack() as stack:
            for hook in hooks:
                manager: Any = hook(job)
                if hasattr(type(manager), "__aenter__"):
                    await stack.enter_async_context(manager)
                else:
                    stack.enter_context(manager)
            with ForkGuard():
                returned = await (consumer.handler(payload, job) if consumer.takes_job else consumer.handler(payload))
            return _resolve(consumer, job, returned)
        job._outcomes = None  # type: ignore[unreachable]  # a hook may suppress an exception
        return None

    return handle


def _resolve(consumer: Consumer, job: Any, returned: Any) -> Any:
    """Find the outcomes of the call while the hooks can see its errors; returns ``job.returned``."""
    if job._outcomes is None:  # the innermost one does it
        job._outcomes, job.returned = resolve_result(consumer, job.items, returned)
    return job.returned
