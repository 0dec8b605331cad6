"""Consumers of a join: one for each of its queues, one for the timeout, and one that runs the handler."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import TypeAdapter

from mongoq.errors import ArgumentInvalid, PartnerMissing, PayloadInvalid
from mongoq.model.arguments import duration
from mongoq.model.item import Item, id_key
from mongoq.model.join_state import Unjoinable, qualify, value_key
from mongoq.model.outcomes import Failed, Release, ResolvedOutcome, SettledElsewhere
from mongoq.pipeline.graph.graph import Graph, Stage
from mongoq.pipeline.graph.routes import pairs_queue, waiting_queue
from mongoq.pipeline.run.outcome_resolver import StageOutcomeResolver, make_resolver, make_stage_handle
from mongoq.protocol.join.join import join_arrivals, settle_expired
from mongoq.protocol.join.match import Arrival
from mongoq.protocol.join.spec import ARRIVALS, JoinSpec
from mongoq.worker.consumer import Consumer, SettleGroup, consumer
from mongoq.worker.outcome_resolver import OutcomeResolver, is_function

__all__ = ["make_join_consumers", "takes_job"]

ANY = "*"
"""Key of all items where the first items of all queues belong together."""


def make_join_consumers(
    graph: Graph, stage: Stage, broker: Any, defaults: Mapping[str, Any], *, coroutines: bool
) -> list[Consumer]:
    """Return the consumers of a join that was checked."""
    options = {name: value for name, value in stage.options.items() if name in defaults}
    # One group for all sides, so that partners that arrive at the same time are settled together.
    gathering = SettleGroup()
    spec, sides, parked = _spec(graph, stage, broker, gathering)
    quiet = {
        **defaults,
        "lease": options.get("lease"),
        "retry": options.get("retry"),
        "prefetch_bytes": options.get("prefetch_bytes", defaults["prefetch_bytes"]),
        "batch": ARRIVALS,
        "prefetch": ARRIVALS,
    }

    def own(handle: Any, resolver: OutcomeResolver) -> Consumer:
        told = consumer(handle, _nothing, **quiet, coroutines=coroutines)
        return replace(told, stage=stage.name, resolver=resolver, claims=_without_limit(handle)._context)

    resolver = make_resolver(
        graph, stage, broker.queue(pairs_queue(graph, stage), model=_model(stage)), broker, kind=_PairResolver
    )
    joins = partial(join_arrivals, spec)  # shared by all sides, so that their items are settled together
    found = [
        replace(own(handle, _Arrivals(resolver, stage, handle.name, spec, joins)), settle_group=gathering)
        for handle in sides
    ]
    if spec.timeout is not None:
        found.append(
            replace(own(parked, _GivenUp(resolver, spec, partial(settle_expired, spec))), drains_with_scheduled=True)
        )
    pairs = make_stage_handle(graph, stage, broker.queue(spec.pairs, model=_model(stage)))
    handler = stage.handler if options.get("batch") is not None else spread(stage.handler, stage)
    runs = consumer(pairs, handler, **{**defaults, **options}, coroutines=coroutines)
    return [*found, replace(runs, stage=stage.name, resolver=resolver)]


def _spec(graph: Graph, stage: Stage, broker: Any, gathering: SettleGroup) -> tuple[JoinSpec, list[Any], Any]:
    join = stage.join
    assert join is not None
    sides = [make_stage_handle(graph, stage, broker.queue(source)) for source in stage.sources]
    parked = _without_limit(make_stage_handle(graph, stage, broker.queue(waiting_queue(graph, stage))))
    spec = JoinSpec(
        name=qualify(graph.name, stage.name, "/"),
        sides=tuple(side._context for side in sides),
        parked=parked._context,
        pairs=pairs_queue(graph, stage),
        timeout=None if join.timeout is None else duration(join.timeout, "timeout", zero=False),
        missing=join.missing,
        late=join.late,
        coming=gathering.is_expecting,
    )
    return spec, sides, parked


def _without_limit(handle: Any) -> Any:
    """Return a handle without a limit of retries: its items come again, however often their leases expire."""
    return handle._with(overriding={**handle._context.overriding, "max_retries": None})


def _model(stage: Stage) -> Any:
    """Return the type of all payloads of a pair together."""
    if stage.model is None:
        return None
    assert stage.join is not None
    models = [Any if model is None else model for model in stage.model]
    if stage.join.missing == "pass":
        # With missing="pass" any of the payloads may be None.
        models = [model | None if model is not Any else Any for model in models]
    together: Any = tuple[tuple(models)]  # type: ignore[misc]  # the types are known at run time only
    return TypeAdapter(together)


def _nothing(_: Any) -> None:
    """Stand-in for a handler: the outcome resolver alone decides about the items."""


def takes_job(handler: Callable[..., Any], number: int) -> bool:
    """Return whether a handler of ``number`` payloads takes the job as well.

    Raises:
        ArgumentInvalid: it takes neither this number of arguments nor one more.
    """
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = sum(one.default is one.empty for one in positional)
    named = any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in parameters)
    several = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if named or needed > number + 1 or (len(positional) < number and not several):
        raise ArgumentInvalid("handler", f"it is to take {number} payloads, one of each queue, and maybe the job")
    # An optional further argument is the job only if its name is job.
    return needed == number + 1 or (len(positional) > number and positional[number].name == "job")


def spread(handler: Callable[..., Any], stage: Stage) -> Callable[..., Any]:
    """Return a handler of one payload, the list of all payloads, that calls the given handler."""
    number = len(stage.sources)
    with_job = takes_job(handler, number)
    if is_function(inspect.iscoroutinefunction, handler):

        async def called_async(payloads: Sequence[Any], job: Any) -> Any:
            return await handler(*payloads, *([job] if with_job else []))

        return _copy_name(called_async, handler)

    def called(payloads: Sequence[Any], job: Any) -> Any:
        return handler(*payloads, *([job] if with_job else []))

    return _copy_name(called, handler)


def _copy_name(function: Callable[..., Any], handler: Callable[..., Any]) -> Callable[..., Any]:
    """Copy the handler's name, so that errors name the handler."""
    function.__qualname__ = getattr(handler, "__qualname__", None) or type(handler).__name__
    return function


class _PairResolver(StageOutcomeResolver):
    """Outcome resolver of pairs; an item of the queue that is not a pair (put there by hand) is not run."""

    def refusal(self, consumer: Consumer, items: Sequence[Item[Any]]) -> list[ResolvedOutcome] | None:
        """Refuse an item that is not a pair, and release the other items of its batch."""
        refused = super().refusal(consumer, items)
        if refused is not None:
            return refused
        errors = [_oddity(item.payload, self.width) for item in items]
        if not any(errors):
            return None
        return [
            Release() if error is None else self.failure(consumer, item, error)
            for item, error in zip(items, errors, strict=True)
        ]


def _oddity(payload: Any, number: int) -> PayloadInvalid | None:
    """Return the error of a payload that does not have one part for each queue; ``None`` if it has."""
    if not isinstance(payload, list | tuple):
        return PayloadInvalid("payload", f"a list of {number}, one of each queue, not {type(payload).__name__}")
    if len(payload) != number:
        return PayloadInvalid("payload", f"a list of {number}, one of each queue, not of {len(payload):,}")
    return None


class _NotRunResolver(OutcomeResolver):
    """Outcome resolver of items that are not run; their failures count as the stage's."""

    def __init__(self, resolver: StageOutcomeResolver, spec: JoinSpec, settle: Callable[..., Any]) -> None:
        self._resolver = resolver
        self._fates = spec.fates
        self._settle = settle

    def _settle_elsewhere(self, item: Item[Any], entry: Any) -> SettledElsewhere:
        return SettledElsewhere(self._settle, entry, partial(self._fates.pop, id_key(item.id), "apart"))

    def failure(self, consumer: Consumer, item: Item[Any], error: BaseException | str | None) -> ResolvedOutcome:
        # There is no error queue for it, so the stage stops.
        if isinstance(error, PartnerMissing):  # and no error queue that it could go to
            return Failed(error, counted=False, halts=True)
        return self._resolver.failure(consumer, item, error)


class _Arrivals(_NotRunResolver):
    def __init__(
        self, resolver: StageOutcomeResolver, stage: Stage, source: str, spec: JoinSpec, joins: Callable[..., Any]
    ) -> None:
        super().__init__(resolver, spec, joins)
        assert stage.join is not None
        self._path = stage.join.path(source)

    def outcomes(self, consumer: Consumer, items: Sequence[Item[Any]], returned: Any) -> list[ResolvedOutcome]:
        return [self._arrival(consumer, item) for item in items]

    def _arrival(self, consumer: Consumer, item: Item[Any]) -> ResolvedOutcome:
        try:
            value = None if self._path is None else _find_value(item.payload, self._path)
            key = ANY if self._path is None else value_key(value)
        # The value will not change: no retry, the item goes to the error queue.
        except Unjoinable as unfit:
            return self._resolver.give_up(item, f"cannot be joined: {self._path!r:.200} {unfit}")
        except Exception as error:  # an error of this item alone
            return self.failure(consumer, item, error)
        return self._settle_elsewhere(item, Arrival(item, key, value))


class _GivenUp(_NotRunResolver):
    def outcomes(self, consumer: Consumer, items: Sequence[Item[Any]], returned: Any) -> list[ResolvedOutcome]:
        return [self._settle_elsewhere(item, item) for item in items]


def _find_value(payload: Any, path: str) -> Any:
    """Return the value at a path of keys, or ``None``."""
    for step in path.split("."):
        if not isinstance(payload, Mapping):
            return None
        payload = payload.get(step)
    return payload
