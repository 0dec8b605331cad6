"""Checks of one stage, join or source on its own: its values, filter, model and options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mongoq.errors import ArgumentInvalid, QueueNameInvalid
from mongoq.model.arguments import count, duration, expires, priority, queue_name
from mongoq.model.encoding.codec import Codec, Encoding, codec_options
from mongoq.model.operators import where_filter
from mongoq.model.outcomes import Drop, Move, Outcome
from mongoq.model.settings import KEEP, Default, check_options
from mongoq.model.stream_claim import MAX_STREAM_CLAIM_ITEMS
from mongoq.pipeline.checks.types import may_hold
from mongoq.pipeline.frames.handler import FORMATS, frames_of, kind_name
from mongoq.pipeline.graph.graph import (
    DEFAULT_BATCH,
    DEFAULT_LEASE_SECONDS,
    KEEP_SEQUENCE,
    SETTINGS_OF_QUEUES,
    Frame,
    Graph,
    Join,
    Source,
    Stage,
)
from mongoq.pipeline.graph.handlers import argument_type, classes, in_a_line, return_type
from mongoq.pipeline.run.consumers import DEFAULTS, join_takes_job
from mongoq.protocol.push.push import check_due, check_headers
from mongoq.worker.consumer import any_handler, consumer
from mongoq.worker.outcome_resolver import is_function
from mongoq.worker.sources import source_plan

VALID_SOURCE: dict[str, Any] = {
    "batch": DEFAULT_BATCH,
    "every": None,
    "lease": DEFAULT_LEASE_SECONDS,
    "coroutines": True,
}
"""Valid options of a source, to check one value at a time. Async generators are valid: asyncio may run them."""
ENCODING = Encoding(codec_options())
DELIVERIES = ("exactly-once", "at-most-once")
ON_NONE = ("error", "drop")
VALID_CONSUMER: dict[str, Any] = {**DEFAULTS, "coroutines": True}
"""Default options of a consumer, to check one at a time. Coroutine functions are valid: asyncio may run them."""
MIN_LEASE_SECONDS = 1
"""Shortest lease in seconds: a stream extends a lease several times within its length."""
FRAME_STAGE_OPTIONS = ("lease", "retry", "max_retries", "history")
MISSING = ("error", "pass")
LATE = ("error", "wait", "drop")


def source_faults(source: Source) -> Iterator[str]:
    """Return the faults of a source, without its name."""
    values: dict[str, Any] = {"batch": source.batch, "every": source.every, "lease": source.lease}
    # Each value is checked alone, beside valid ones: source_plan raises at the first fault, and all are reported.
    for handler, options in [
        (source.handler, VALID_SOURCE),
        *((_nothing, VALID_SOURCE | {key: values[key]}) for key in values),
    ]:
        yield from _yield_fault(partial(source_plan, "", "", None, handler, **options))


def _nothing(_position: Any) -> Iterator[Any]:
    yield from ()


def stage_faults(graph: Graph, stage: Stage) -> Iterator[str]:
    """Return the faults of a stage, without its name."""
    yield from _of_values(stage)
    yield from _of_errors(graph, stage)
    yield from _of_the_filter(stage)
    yield from _of_otherwise(stage)
    yield from _of_the_sequence(stage)
    if stage.format is not None:
        yield from format_faults(stage)
    if stage.join is not None:
        yield from join_faults(stage, stage.join)
    elif stage.frame is not None:
        yield from frame_faults(stage, stage.frame)
    else:
        yield from _yield_fault(lambda: Codec(ENCODING, stage.model))
    if (stage.join is None and stage.frame is None) or stage.options.get("batch") is not None:
        yield from _yield_fault(lambda: consumer(None, stage.handler, **VALID_CONSUMER))
    yield from _timeout_faults(stage)
    yield from _limit_faults(stage)
    for option, value in stage.options.items():
        yield from _yield_fault(partial(_check_option, option, value))


def _yield_fault(check: Callable[[], Any]) -> Iterator[str]:
    try:
        check()
    except ArgumentInvalid as invalid:
        yield in_a_line(invalid)


def _check_option(option: str, value: Any) -> None:
    if option == "max_retries" or option in SETTINGS_OF_QUEUES:
        # They are settings of the queue, which the consumer's own check does not know.
        check_options("", **{option: value})
    else:
        max_time = 1 if option == "on_timeout" else None  # a missing max_time is reported by _timeout_faults
        # Each option alone, beside valid defaults: the check raises at the first fault, and all are reported.
        consumer(None, any_handler, **VALID_CONSUMER | {"max_time": max_time, option: value})


def _timeout_faults(stage: Stage) -> Iterator[str]:
    """Return the faults of ``on_timeout``, which needs a ``max_time``, and for ``"cancel"`` a coroutine function."""
    options = {name: stage.options[name] for name in ("on_timeout", "max_time") if name in stage.options}
    if options.get("on_timeout") not in ("release", "cancel") or not callable(stage.handler):
        return
    if options.get("max_time") is None:
        yield "on_timeout: it needs a max_time; give both, or none"
    elif options["on_timeout"] == "cancel" and not is_function(inspect.iscoroutinefunction, stage.handler):
        yield "on_timeout: a plain function cannot be cancelled; take 'release', or make it a coroutine function"


def _limit_faults(stage: Stage) -> Iterator[str]:
    """Return the faults of limits, each of which belongs to one queue."""
    given = [*stage.limits, *(["rate_key"] if stage.options.get("rate_key") is not None else [])]
    if not given or stage.frame is not None:  # a stage on frames has no such options
        return
    names = " and ".join(given)
    if stage.join is not None:
        yield f"{names}: a join has no limits; let it send its items on, and give them to the stage behind it"
    elif len(stage.sources) > 1:
        yield f"{names}: limits belong to one queue, and it takes items from {len(stage.sources)}; make a stage of each"
    if "rate_key" in given and stage.options.get("batch") is not None:
        yield "rate_key: the items of a batch start together; give batch= or rate_key=, not both"


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
    queue: Any = stage.errors
    if not (queue is None or isinstance(queue, str | Default)):
        yield f"errors: the name of a queue, or None, not {type(queue).__name__}"
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
    yield from _yield_fault(lambda: where_filter(stage.where, ENCODING))
    if stage.otherwise is None:
        yield "where: say what becomes of the other items, with otherwise=Drop() or otherwise=Move(queue)"


def _of_the_sequence(stage: Stage) -> Iterator[str]:
    """Yield the faults of ``sequence``, which decides where outputs wait for each other."""
    sequence: Any = stage.sequence
    if sequence is None:
        return
    if not (sequence == KEEP_SEQUENCE or callable(sequence)):
        yield f"sequence: a function of the payload, or 'keep' for the sequence of the input, not {sequence!r:.60}"
        return
    if stage.is_sink:
        yield "sequence: items end here, so no output enters one; leave it out"
    if stage.delivery == "at-most-once":
        yield "sequence: what is run at most once leaves its place before it runs, so its outputs have no order"
    if sequence == KEEP_SEQUENCE:
        if stage.join is not None:
            yield "sequence: the inputs of a join have several; give a function of the payload in place of 'keep'"
    elif is_function(inspect.iscoroutinefunction, sequence) or is_function(inspect.isgeneratorfunction, sequence):
        yield "sequence: a plain function is called, and nothing awaits it or loops over it; make it one"
    elif not _takes_one(sequence):
        yield "sequence: it is called with the payload of an output, and cannot be; let it take one argument"


def _of_otherwise(stage: Stage) -> Iterator[str]:
    """Yield the faults of ``otherwise``, which settles the items that do not match the filter."""
    outcome: Any = stage.otherwise
    if outcome is None or isinstance(outcome, Drop):
        return
    if not isinstance(outcome, Move):
        yield f"otherwise: Drop() or Move(queue), not {outcome!r:.60}"
        return
    if outcome.sequence is not None:
        yield "otherwise: a filter moves no item into a sequence; let a handler do it"
    if outcome.payload is not KEEP or outcome.patch is not None:
        yield "otherwise: the move of items that do not fit leaves their payload alone; leave out payload= and patch="
    for check in (
        lambda: queue_name(outcome.to, "otherwise"),
        lambda: check_due(outcome.delay, outcome.when),
        lambda: None if outcome.expires is None else expires(outcome.expires),
        lambda: None if outcome.priority is None else priority(outcome.priority),
        lambda: None if outcome.headers is KEEP else check_headers(outcome.headers, ENCODING),
    ):
        yield from (fault if fault.startswith("otherwise") else f"otherwise: {fault}" for fault in _yield_fault(check))


def format_faults(stage: Stage) -> Iterator[str]:
    """Return the faults of the stage's ``format=``, without the stage's name."""
    format: Any = stage.format
    if not isinstance(format, str) or format not in FORMATS:
        yield f"format: {' or '.join(map(repr, FORMATS))}, not {format!r:.60}"
        return
    if stage.join is not None:
        yield "format: a join takes payloads; leave it out, or join first, and have a batch stage behind that"
    if stage.frame is not None:
        yield "format: the stage takes frames of Spark; leave it out"
    if stage.delivery == "at-most-once":
        yield "delivery: what is run at most once is run item by item, and a frame is made of a batch; leave it out"
    if stage.options.get("batch") is None:
        yield "batch: a frame is made of a batch; say of how many items at most"
    try:
        # Importing the format's module finds a missing package here, and not in the first run.
        kind = frames_of(format).KIND
    except ImportError as error:
        yield f"format: {error}"
        return
    yield from _of_annotations(stage, format, kind)


def _of_annotations(stage: Stage, format: str, kind: type) -> Iterator[str]:
    takes = classes(argument_type(stage.handler)) or []
    if takes and not any(may_hold(each, kind) for each in takes):
        yield f"format: the handler takes {_names(takes)}, and is given a {kind_name(format)}; change one of them"
    returns = classes(return_type(stage.handler)) or []
    if returns and not any(may_hold(each, kind) or _is_listed(each) for each in returns):
        yield f"format: the handler returns {_names(returns)}, where a {kind_name(format)} is due; change one of them"


def _is_listed(kind: type) -> bool:
    """Return whether a handler may return this class in place of a frame; other checks decide about ``None``."""
    return kind is type(None) or (issubclass(kind, list | tuple) and not issubclass(kind, Outcome))


def _names(kinds: list[type]) -> str:
    return " or ".join(
        f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}".removeprefix("builtins.") for kind in kinds
    )


def frame_faults(stage: Stage, frame: Frame) -> Iterator[str]:
    """Return the faults of a frame stage, without its name. Spark checks the types when the stage starts."""
    yield from _of_the_handler(stage.handler)
    yield from _of_the_schema(frame.schema)
    yield from _of_numbers(frame)
    yield from _of_the_lease(stage.options.get("lease"))
    yield from _of_refused_options(stage)


def _of_the_handler(handler: Any) -> Iterator[str]:
    if not callable(handler):
        yield f"handler: a function, not {type(handler).__name__}"
        return
    if is_function(inspect.iscoroutinefunction, handler) or is_function(inspect.isasyncgenfunction, handler):
        yield "handler: it is a coroutine function, and Spark awaits nothing; make it a plain one"
    elif is_function(inspect.isgeneratorfunction, handler):
        yield "handler: it is a generator, which would run nothing; return a DataFrame"
    elif not _takes_one(handler):
        yield "handler: it is called with one DataFrame, and cannot be; let it take one argument"


def _takes_one(handler: Any) -> bool:
    try:
        # bind, because optional arguments, *args and bound methods are allowed as well.
        inspect.signature(handler).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function written in C without a signature
        return True
    return True


def _of_the_schema(schema: Any) -> Iterator[str]:
    text = isinstance(schema, str)
    if (text and not schema.strip()) or not (schema is None or text or hasattr(schema, "fieldNames")):
        problem = "nothing" if text else f"a value of type {type(schema).__name__}"
        yield f"schema: columns such as 'carrier string, dep_delay int', a StructType, or None, not {problem}"


def _of_numbers(frame: Frame) -> Iterator[str]:
    try:
        if count(frame.items, "items") > MAX_STREAM_CLAIM_ITEMS:
            yield f"items: {MAX_STREAM_CLAIM_ITEMS:,} at most, not {frame.items:,}"
    except ArgumentInvalid as invalid:
        yield in_a_line(invalid)
    if frame.partitions is not None:
        yield from _yield_fault(lambda: count(frame.partitions, "partitions"))


def _of_the_lease(lease: Any) -> Iterator[str]:
    if lease is None:
        return
    try:
        length = duration(lease, "lease", zero=False)
    except ArgumentInvalid:
        return  # reported with the other options
    if length.total_seconds() < MIN_LEASE_SECONDS:
        yield f"lease: of a stage on frames {MIN_LEASE_SECONDS} second at least, since a stream extends it"


def _of_refused_options(stage: Stage) -> Iterator[str]:
    """Yield the faults of options that a recipe may have and the decorator does not accept."""
    refused = {
        "model": stage.model is not None,
        "where": stage.where is not None,
        "delivery": stage.delivery != "exactly-once",
        "none": stage.none != "error",
        **{option: True for option in stage.options if option not in FRAME_STAGE_OPTIONS},
    }
    for name, value in refused.items():
        if value:
            yield f"{name}: a stage on frames has no such option; leave it out, or do it in the function"


def join_faults(stage: Stage, join: Join) -> Iterator[str]:
    """Return the faults of a join, without the stage's name."""
    if len(stage.sources) < 2:
        yield "source: a join takes items from two queues or more; name them in a list"
    yield from _of_the_value(stage, join)
    yield from _of_time(join)
    yield from _of_models(stage)
    if stage.options.get("batch") is None:  # with batch= the handler takes one list; the checks of any stage apply
        yield from _of_the_join_handler(stage)
    yield from _of_join_options(stage)


def _of_the_value(stage: Stage, join: Join) -> Iterator[str]:
    if isinstance(join.on, Mapping):
        if set(join.on) != set(stage.sources):
            yield f"on: a path for each of its queues {stage.sources!r:.150}, not for {tuple(join.on)!r:.150}"
        # Paths of a mapping with wrong queues are checked all the same: all faults are reported at once.
        paths = list(join.on.values())
    else:
        paths = [] if join.on is None else [join.on]
    for path in paths:
        if not isinstance(path, str) or not all(path.split(".")):
            yield f"on: where the value stands in payloads, such as 'order.id', or None, not {path!r:.60}"


def _of_time(join: Join) -> Iterator[str]:
    if join.timeout is not None:
        yield from _yield_fault(lambda: duration(join.timeout, "timeout", zero=False))
    for name, value, allowed in (("missing", join.missing, MISSING), ("late", join.late, LATE)):
        if value not in allowed:
            yield f"{name}: {' or '.join(map(repr, allowed))}, not {value!r:.60}"
        elif value != "error" and join.timeout is None:
            yield f"{name}: {value!r} says nothing without a timeout; give one, or leave it out"


def _of_models(stage: Stage) -> Iterator[str]:
    models: Any = stage.model
    if models is None:
        return
    if not isinstance(models, Sequence) or isinstance(models, str) or len(models) != len(stage.sources):
        yield f"model: a list with one for each of its {len(stage.sources)} queues, None for any"
        return
    for model in models:
        yield from _yield_fault(partial(Codec, ENCODING, model))


def _of_the_join_handler(stage: Stage) -> Iterator[str]:
    handler: Any = stage.handler
    if not callable(handler):
        yield f"handler: a function, not {type(handler).__name__}"
        return
    if is_function(inspect.isgeneratorfunction, handler) or is_function(inspect.isasyncgenfunction, handler):
        yield "handler: it is a generator, which would run nothing; return instead"
        return
    yield from _yield_fault(lambda: join_takes_job(handler, len(stage.sources)))


def _of_join_options(stage: Stage) -> Iterator[str]:
    if stage.frame is not None:
        yield "frame: a join takes payloads; join frames in the function of a stage on frames"
    if stage.where is not None:
        yield "where: a join takes all items of its queues; let a stage before it choose"
    if stage.delivery != "exactly-once":
        yield "delivery: a join is exactly once; leave it out"
    if stage.shared:
        yield "shared: an item that went elsewhere would be missed; give each stage a queue of its own"


def join_queue_faults(graph: Graph) -> Iterator[str]:
    """Return the faults of the queues in which the joins of a graph park their items."""
    queues = [*graph.outputs, *(graph.errors_of(part) for part in graph.stages)]
    queues += [queue for part in graph.stages for queue in (*part.sources, *part.targets)]
    named = {queue for queue in queues if isinstance(queue, str)}
    for stage in graph.stages:
        if stage.join is not None:
            yield from (f"stage {stage.name!r:.150}: {fault}" for fault in _of_its_queues(graph, stage, named))


def _of_its_queues(graph: Graph, stage: Stage, named: set[str]) -> Iterator[str]:
    for queue in (graph.waiting_queue(stage), graph.pairs_queue(stage)):
        try:
            queue_name(queue)
        except QueueNameInvalid:
            yield f"name: its items wait in {queue!r:.150}, which is no name of a queue; shorten it, or the pipeline's"
        if queue in named:
            yield f"name: {queue!r:.150} is where its own items wait or are joined; name that queue otherwise"
