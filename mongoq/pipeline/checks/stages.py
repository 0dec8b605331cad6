"""Checks of one stage on its own: its values, filter, model and options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import priority, queue_name
from mongoq.model.encoding.codec import Codec, Encoding, codec_options
from mongoq.model.filters import where_filter
from mongoq.model.outcomes import Drop, Move
from mongoq.model.settings import KEEP, Default, checked_options
from mongoq.pipeline.checks.batch_stages import format_faults
from mongoq.pipeline.checks.joins import join_faults
from mongoq.pipeline.checks.spark_frame_stages import frame_faults
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.graph.names import in_a_line
from mongoq.pipeline.graph.stage import Stage
from mongoq.pipeline.run.consumers import DEFAULTS
from mongoq.protocol.push.push import check_due, check_headers
from mongoq.worker.consumer import any_handler, consumer
from mongoq.worker.lazy_results import is_function

__all__ = ["stage_faults"]

ENCODING = Encoding(codec_options())
DELIVERIES = ("exactly-once", "at-most-once")
ON_NONE = ("error", "drop")
CONSUMER: dict[str, Any] = {**DEFAULTS, "coroutines": True}
"""Default options of a consumer, to check one at a time. Coroutine functions are valid: asyncio may run them."""


def stage_faults(graph: Graph, stage: Stage) -> Iterator[str]:
    """Return the faults of a stage, without its name."""
    yield from _of_values(stage)
    yield from _of_errors(graph, stage)
    yield from _of_the_filter(stage)
    yield from _of_the_rest(stage)
    if stage.format is not None:
        yield from format_faults(stage)
    if stage.join is not None:
        yield from join_faults(graph, stage)
    elif stage.frame is not None:
        yield from frame_faults(stage, stage.frame)
    else:
        yield from _refused(lambda: Codec(ENCODING, stage.model))
    if (stage.join is None and stage.frame is None) or stage.options.get("batch") is not None:
        yield from _refused(lambda: consumer(None, stage.handler, **CONSUMER))
    yield from _timeout_faults(stage)
    for option, value in stage.options.items():
        yield from _refused(lambda option=option, value=value: _check_option(option, value))  # type: ignore[misc]


def _refused(check: Callable[[], Any]) -> Iterator[str]:
    try:
        check()
    except ArgumentInvalid as invalid:
        yield in_a_line(invalid)


def _check_option(option: str, value: Any) -> None:
    if option == "max_retries":
        # max_retries is a setting of the queue, which the consumer's own check does not know.
        checked_options("", max_retries=value)
    else:
        max_time = 1 if option == "on_timeout" else None  # a missing max_time is reported by _timeout_faults
        # Each option alone, beside valid defaults: the check raises at the first fault, and all are reported.
        consumer(None, any_handler, **CONSUMER | {"max_time": max_time, option: value})


def _timeout_faults(stage: Stage) -> Iterator[str]:
    """Return the faults of ``on_timeout``, which needs a ``max_time``, and for ``"cancel"`` a coroutine function."""
    options = {name: stage.options[name] for name in ("on_timeout", "max_time") if name in stage.options}
    if options.get("on_timeout") not in ("release", "cancel") or not callable(stage.handler):
        return
    if options.get("max_time") is None:
        yield "on_timeout: it needs a max_time; give both, or none"
    elif options["on_timeout"] == "cancel" and not is_function(inspect.iscoroutinefunction, stage.handler):
        yield "on_timeout: a plain function cannot be cancelled; take 'release', or make it a coroutine function"


def _of_values(stage: Stage) -> Iterator[str]:
    if stage.delivery not in DELIVERIES:
        yield f"delivery: 'exactly-once' or 'at-most-once', not {stage.delivery!r:.60}"
    if stage.none not in ON_NONE:
        yield f"none: 'error' or 'drop', not {stage.none!r:.60}"
    elif stage.none == "drop" and stage.is_sink:
        yield "none: 'drop' says nothing in a sink, where whatever is returned is success; leave it out"
    shared: Any = stage.shared
    if not isinstance(shared, bool):
        yield f"shared: a bool, not {type(shared).__name__}"
    if stage.delivery == "at-most-once" and stage.format is None and stage.options.get("batch") is not None:
        yield "batch: what is run at most once is run item by item; leave it out"
    if stage.options.get("success_on") and len(stage.targets) > 1:
        yield "success_on: nothing says to which of several targets such an item goes; catch the error, return a Move"


def _of_errors(graph: Graph, stage: Stage) -> Iterator[str]:
    told: Any = stage.errors
    if not (told is None or isinstance(told, str | Default)):
        yield f"errors: the name of a queue, or None, not {type(told).__name__}"
    errors = graph.errors_of(stage)
    if isinstance(errors, str) and errors in stage.sources:
        yield (
            f"errors: what fails would go back to {errors!r:.150}, which it takes items from; name another queue, "
            f"or errors=None"
        )


def _of_the_filter(stage: Stage) -> Iterator[str]:
    if stage.where is None:
        if stage.otherwise is not None:
            yield "otherwise: there is no where= that an item could fail to fit; add one, or leave it out"
        return
    yield from _refused(lambda: where_filter(stage.where, ENCODING))
    if stage.otherwise is None:
        yield "where: say what becomes of the other items, with otherwise=Drop() or otherwise=Move(queue)"


def _of_the_rest(stage: Stage) -> Iterator[str]:
    """Yield the faults of ``otherwise``, which settles the items that do not match the filter."""
    told: Any = stage.otherwise
    if told is None or isinstance(told, Drop):
        return
    if not isinstance(told, Move):
        yield f"otherwise: Drop() or Move(queue), not {told!r:.60}"
        return
    if told.payload is not KEEP or told.patch is not None:
        yield "otherwise: the move of items that do not fit leaves their payload alone; leave out payload= and patch="
    for check in (
        lambda: queue_name(told.to, "otherwise"),
        lambda: check_due(told.delay, told.when),
        lambda: None if told.priority is None else priority(told.priority),
        lambda: None if told.headers is KEEP else check_headers(told.headers, ENCODING),
    ):
        yield from (fault if fault.startswith("otherwise") else f"otherwise: {fault}" for fault in _refused(check))
