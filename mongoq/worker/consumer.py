"""Consumers: a queue, the handler of its items, and how it is run; all of it checked when it is registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import Duration, count, duration
from mongoq.model.policy import Exponential, RetryPolicy
from mongoq.protocol.claim.filtering import ItemFilter
from mongoq.protocol.state.context import QueueContext
from mongoq.worker.lazy_results import is_function
from mongoq.worker.outcome_resolver import OutcomeResolver
from mongoq.worker.settle_group import SettleGroup

__all__ = ["BROKER_HINT", "PREFETCH_BYTES", "Consumer", "Handler", "OnTimeout", "any_handler", "consumer"]

Handler = Callable[..., Any]
OnTimeout = Literal["log", "release", "cancel"]

BROKER_HINT = "Worker goes with Broker, and AsyncWorker with AsyncBroker"
DEFAULT_RESOLVER = OutcomeResolver()
MAX_CONCURRENCY = 1_000
MAX_ITEMS = 10_000
PREFETCH_BYTES = 64 * 1024 * 1024
"""Bytes of the items that a consumer holds, unless it says otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class Consumer:
    """What a worker was told about a queue; durations are ``timedelta``.

    Attributes:
        queue: the handle of the queue, with the codec of its payloads.
        handler: called with the payload, or a list of payloads; and the job, when it takes two arguments.
        asynchronous: it is a coroutine function.
        takes_job: it takes the job too.
        concurrency: how many runs at a time.
        prefetch: how many items wait for a run at most; ``None`` to go by how fast they are worked off.
        prefetch_bytes: no more is claimed while the items that are held have so many bytes; ``None`` for no limit.
        lease: how long a reservation lasts, or ``None`` for the queue's; it is extended while the handler runs.
        retry: how long a failed item waits.
        success_on: exceptions that count as success.
        max_time: a run that takes longer is logged with its stack, once.
        on_timeout: what becomes of it besides: ``"log"``: nothing; ``"release"``: its leases are extended no more;
            ``"cancel"``: its task is cancelled as well.
        batch: how many items a run takes at most; ``None`` for one, without a list.
        probe: while the handler keeps failing, one item at a time is tried.
        stage: the name of the pipeline's stage that it is, if it is one.
        screen: which items it takes, and what becomes of the others; ``None`` for all.
        resolver: says what a run came to.
        pops: an item leaves the queue before its run, which therefore happens once at most.
        lingers: what is scheduled in the queue keeps nobody who drains it.
        claims: what it claims from, where no handler runs that could kill the worker: what has lapsed is settled along
            with the others. ``None`` for the queue, where that runs alone.
        settle_group: those whose items are settled together with its own; ``None`` when there are no others.
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
    screen: ItemFilter | None = None
    resolver: OutcomeResolver = DEFAULT_RESOLVER
    pops: bool = False
    lingers: bool = False
    claims: QueueContext[Any] | None = None
    settle_group: SettleGroup | None = None

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.queue.name  # type: ignore[no-any-return]

    @property
    def label(self) -> str:
        """What a run of an item is known by: the name of the stage, or of the queue."""
        return self.stage or self.name

    @property
    def title(self) -> str:
        """What logs call it."""
        return f"stage {self.stage!r}" if self.stage else f"queue {self.name!r}"


def consumer(
    queue: Any,
    handler: Any,
    *,
    concurrency: int,
    prefetch: int | None,
    lease: Duration | None,
    retry: RetryPolicy | None,
    success_on: type[BaseException] | Sequence[type[BaseException]],
    max_time: Duration | None,
    batch: int | None,
    probe: bool,
    coroutines: bool,
    on_timeout: OnTimeout = "log",
    prefetch_bytes: int | None = PREFETCH_BYTES,
) -> Consumer:
    """Return a consumer, checked; ``coroutines`` says whether its handler may be a coroutine function."""
    asynchronous, takes_job = _check_handler(handler, coroutines=coroutines)
    if not isinstance(probe, bool):
        raise ArgumentInvalid("probe", f"a bool, not {type(probe).__name__}")
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise ArgumentInvalid("retry", f"a policy such as Exponential(base=1), not {retry!r:.60}")
    limit = None if max_time is None else duration(max_time, "max_time", zero=False)
    _check_timeout(on_timeout, limit, handler, asynchronous=asynchronous)
    return Consumer(
        queue=queue,
        handler=handler,
        asynchronous=asynchronous,
        takes_job=takes_job,
        concurrency=_check_range(concurrency, "concurrency", 1, MAX_CONCURRENCY),
        prefetch=None if prefetch is None else _check_range(prefetch, "prefetch", 0, MAX_ITEMS),
        lease=None if lease is None else duration(lease, "lease", zero=False),
        retry=Exponential() if retry is None else retry,
        success_on=_exceptions(success_on),
        max_time=limit,
        batch=None if batch is None else _check_range(batch, "batch", 1, MAX_ITEMS),
        probe=probe,
        on_timeout=on_timeout,
        prefetch_bytes=None if prefetch_bytes is None else count(prefetch_bytes, "prefetch_bytes"),
    )


async def any_handler(_: Any) -> None:
    """Stand for a handler where options are checked before it is known."""


def _check_timeout(on_timeout: Any, limit: timedelta | None, handler: Any, *, asynchronous: bool) -> None:
    if on_timeout not in get_args(OnTimeout):
        raise ArgumentInvalid("on_timeout", f"'log', 'release' or 'cancel', not {on_timeout!r:.60}")
    if on_timeout != "log" and limit is None:
        raise ArgumentInvalid("on_timeout", f"{on_timeout!r} needs a max_time; give both, or none")
    if on_timeout == "cancel" and not asynchronous:
        hint = "a thread cannot be cancelled; take on_timeout='release', or make it a coroutine function"
        raise ArgumentInvalid("on_timeout", f"{_name(handler)} is a plain function, and {hint}")


def _check_range(value: Any, argument: str, least: int, most: int) -> int:
    number = count(value, argument, least=least)
    if number > most:
        raise ArgumentInvalid(argument, f"{most:,} at most, not {number:,}")
    return number


def _exceptions(value: Any) -> tuple[type[BaseException], ...]:
    kinds = (value,) if isinstance(value, type) else value
    if not isinstance(kinds, tuple | list | set | frozenset):
        raise ArgumentInvalid("success_on", f"exception classes, such as (KeyError,), not {type(value).__name__}")
    for kind in kinds:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise ArgumentInvalid("success_on", f"exception classes, not {kind!r}")
    return tuple(kinds)


def _check_handler(handler: Any, *, coroutines: bool) -> tuple[bool, bool]:
    """Say whether a handler is a coroutine function, and whether it takes the job."""
    if not callable(handler):
        raise ArgumentInvalid("handler", f"a function, not {type(handler).__name__}")
    if is_function(inspect.isgeneratorfunction, handler) or is_function(inspect.isasyncgenfunction, handler):
        raise ArgumentInvalid("handler", f"{_name(handler)} is a generator, which would run nothing; return instead")
    asynchronous = is_function(inspect.iscoroutinefunction, handler)
    if asynchronous and not coroutines:
        hint = (
            "an AsyncWorker runs it, or start_async and drain_async of its pipeline; here it is to be a plain function"
        )
        raise ArgumentInvalid("handler", f"{_name(handler)} is a coroutine function; {hint}")
    return asynchronous, _takes_job(handler)


def _takes_job(handler: Handler) -> bool:
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # some of those written in C do not say
        return False
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = [one for one in positional if one.default is one.empty]
    named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    several = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if not (positional or several) or len(needed) > 2 or named:
        raise ArgumentInvalid("handler", f"{_name(handler)} is to take (payload) or (payload, job), and nothing else")
    return len(needed) == 2 or (len(positional) > 1 and positional[1].name == "job")


def _name(handler: Any) -> str:
    return getattr(handler, "__qualname__", None) or type(handler).__name__
