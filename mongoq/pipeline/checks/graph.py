"""Checks of a graph: of the whole, and of each stage, join and source on its own."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import NoneType
from typing import Any, get_args
from unicodedata import category

from mongoq.errors import ArgumentInvalid, QueueNameInvalid
from mongoq.model.arguments import count, duration, expires, priority, queue_name
from mongoq.model.encoding.codec import Codec, Encoding, codec_options
from mongoq.model.operators import where_filter
from mongoq.model.outcomes import Drop, Move, Outcome
from mongoq.model.settings import KEEP, Default, check_options
from mongoq.model.stream_claim import MAX_STREAM_CLAIM_ITEMS
from mongoq.pipeline.checks.types import may_hold, type_faults
from mongoq.pipeline.frames.handler import FORMATS, frames_of
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
from mongoq.protocol.push.draft import check_due, check_headers
from mongoq.worker.consumer import LogErrors, any_handler, consumer
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
        yield from _raised(partial(source_plan, "", "", None, handler, **options))


def _nothing(_position: Any) -> Iterator[Any]:
    yield from ()


def stage_faults(graph: Graph, stage: Stage) -> Iterator[str]:
    """Return the faults of a stage, without its name."""
    yield from _of_values(graph, stage)
    yield from _of_otherwise(stage)
    yield from _of_sequence(stage)
    if stage.format is not None:
        yield from _of_format(stage)
    if stage.join is not None:
        yield from _of_join(stage, stage.join)
    elif stage.frame is not None:
        yield from _of_frame(stage, stage.frame)
    else:
        yield from _raised(lambda: Codec(ENCODING, stage.model))
    if (stage.join is None and stage.frame is None) or stage.options.get("batch") is not None:
        yield from _raised(lambda: consumer(None, stage.handler, **VALID_CONSUMER))
    yield from _of_options(stage)


def _raised(check: Callable[[], Any]) -> Iterator[str]:
    """Yield the fault that a check raises, if it raises one."""
    try:
        check()
    except ArgumentInvalid as invalid:
        yield in_a_line(invalid)


def _of_options(stage: Stage) -> Iterator[str]:
    """Yield the faults of options: those that depend on each other or the stage, then each by itself."""
    options, has_batch = stage.options, stage.options.get("batch") is not None
    limits = [*stage.limits, *(["rate_key"] if options.get("rate_key") is not None else [])]
    stops = options.get("on_timeout") in ("release", "cancel") and callable(stage.handler)
    is_coroutine = is_function(inspect.iscoroutinefunction, stage.handler)
    if stops and options.get("max_time") is None:
        yield "on_timeout: it needs a max_time; give both, or none"
    if stops and options.get("max_time") is not None and options["on_timeout"] == "cancel" and not is_coroutine:
        yield "on_timeout: a plain function cannot be cancelled; take 'release', or make it a coroutine function"
    if limits and stage.frame is None:  # a stage on frames has no such options
        names, number = " and ".join(limits), len(stage.sources)
        if stage.join is not None:
            yield f"{names}: a join has no limits; let it send its items on, and give them to the stage behind it"
        if stage.join is None and number > 1:
            yield f"{names}: limits belong to one queue, and it takes items from {number}; make a stage of each"
        if "rate_key" in limits and has_batch:
            yield "rate_key: the items of a batch start together; give batch= or rate_key=, not both"
    for option, value in options.items():
        if option == "max_retries" or option in SETTINGS_OF_QUEUES:
            # They are settings of the queue, which the consumer's own check does not know.
            yield from _raised(partial(check_options, "", **{option: value}))
        else:
            # Each option alone, beside valid defaults: the check raises at the first fault, and all are reported. A
            # missing max_time is reported above.
            valid = VALID_CONSUMER | {"max_time": 1 if option == "on_timeout" else None}
            yield from _raised(partial(consumer, None, any_handler, **valid | {option: value}))


def _of_values(graph: Graph, stage: Stage) -> Iterator[str]:  # noqa: C901 - a list of checks
    shared: Any = stage.shared
    own_errors: Any = stage.errors
    errors = graph.errors_of(stage)
    if stage.delivery not in DELIVERIES:
        yield f"delivery: 'exactly-once' or 'at-most-once', not {stage.delivery!r:.60}"
    if stage.none not in ON_NONE:
        yield f"none: 'error' or 'drop', not {stage.none!r:.60}"
    if stage.none == "drop" and stage.is_sink:
        yield "none: 'drop' says nothing in a sink, where whatever is returned is success; leave it out"
    if not isinstance(shared, bool):
        yield f"shared: a bool, not {type(shared).__name__}"
    if stage.delivery == "at-most-once" and stage.format is None and stage.options.get("batch") is not None:
        yield "batch: what is run at most once is run item by item; leave it out"
    if stage.options.get("success_on") and len(stage.targets) > 1:
        yield "success_on: nothing says to which of several targets such an item goes; catch the error, return a Move"
    if not (own_errors is None or isinstance(own_errors, str | Default)):
        yield f"errors: the name of a queue, or None, not {type(own_errors).__name__}"
    if isinstance(errors, str) and errors in stage.sources:
        yield (
            f"errors: what fails would go back to {errors!r:.150}, which it takes items from; name another queue, "
            f"or errors=None"
        )
    if stage.where is not None:
        yield from _raised(lambda: where_filter(stage.where, ENCODING))
    if stage.where is not None and stage.otherwise is None:
        yield "where: say what becomes of the other items, with otherwise=Drop() or otherwise=Move(queue)"
    if stage.where is None and stage.otherwise is not None:
        yield "otherwise: there is no where= that an item could fail to fit; add one, or leave it out"


def _of_sequence(stage: Stage) -> Iterator[str]:
    """Yield the faults of ``sequence``, which decides where outputs wait for each other."""
    sequence: Any = stage.sequence
    if sequence is None:
        return
    keeps = sequence == KEEP_SEQUENCE
    if not (keeps or callable(sequence)):
        yield f"sequence: a function of the payload, or 'keep' for the sequence of the input, not {sequence!r:.60}"
        return
    is_lazy = any(is_function(kind, sequence) for kind in (inspect.iscoroutinefunction, inspect.isgeneratorfunction))
    if stage.is_sink:
        yield "sequence: items end here, so no output enters one; leave it out"
    if stage.delivery == "at-most-once":
        yield "sequence: what is run at most once leaves its place before it runs, so its outputs have no order"
    if keeps and stage.join is not None:
        yield "sequence: the inputs of a join have several; give a function of the payload in place of 'keep'"
    if is_lazy:
        yield "sequence: a plain function is called, and nothing awaits it or loops over it; make it one"
    if not (keeps or is_lazy or _takes_one(sequence)):
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
        yield from (fault if fault.startswith("otherwise") else f"otherwise: {fault}" for fault in _raised(check))


def _of_format(stage: Stage) -> Iterator[str]:
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
    takes = classes(argument_type(stage.handler)) or []
    returns = classes(return_type(stage.handler)) or []
    # A handler may return a list in place of a frame; other checks decide about ``None``.
    lists = [each for each in returns if issubclass(each, list | tuple) and not issubclass(each, Outcome)]
    if takes and not any(may_hold(each, kind) for each in takes):
        yield f"format: the handler takes {_names(takes)}, and is given a {FORMATS[format]}; change one of them"
    if returns and not (lists or NoneType in returns or any(may_hold(each, kind) for each in returns)):
        yield f"format: the handler returns {_names(returns)}, where a {FORMATS[format]} is due; change one of them"


def _names(kinds: list[type]) -> str:
    return " or ".join(
        f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}".removeprefix("builtins.") for kind in kinds
    )


def _of_frame(stage: Stage, frame: Frame) -> Iterator[str]:
    """Yield the faults of a frame stage. Spark checks the types when the stage starts."""
    handler: Any = stage.handler
    schema, lease, has_text = frame.schema, stage.options.get("lease"), isinstance(frame.schema, str)
    is_callable, is_generator = callable(handler), is_function(inspect.isgeneratorfunction, handler)
    is_coroutine = any(is_function(kind, handler) for kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction))
    is_schema = schema.strip() if has_text else schema is None or hasattr(schema, "fieldNames")
    problem = "nothing" if has_text else f"a value of type {type(schema).__name__}"
    if not is_callable:
        yield f"handler: a function, not {type(handler).__name__}"
    if is_coroutine:
        yield "handler: it is a coroutine function, and Spark awaits nothing; make it a plain one"
    if is_generator:
        yield "handler: it is a generator, which would run nothing; return a DataFrame"
    if is_callable and not (is_coroutine or is_generator or _takes_one(handler)):
        yield "handler: it is called with one DataFrame, and cannot be; let it take one argument"
    if not is_schema:
        yield f"schema: columns such as 'carrier string, dep_delay int', a StructType, or None, not {problem}"
    wrong_number = list(_raised(lambda: count(frame.items, "items")))
    yield from wrong_number
    if not wrong_number and frame.items > MAX_STREAM_CLAIM_ITEMS:
        yield f"items: {MAX_STREAM_CLAIM_ITEMS:,} at most, not {frame.items:,}"
    if frame.partitions is not None:
        yield from _raised(lambda: count(frame.partitions, "partitions"))
    # A lease that is no duration is reported with the other options.
    is_length = lease is not None and not list(_raised(lambda: duration(lease, "lease", zero=False)))
    if is_length and duration(lease, "lease").total_seconds() < MIN_LEASE_SECONDS:
        yield f"lease: of a stage on frames {MIN_LEASE_SECONDS} second at least, since a stream extends it"
    # Options that a recipe may have, and that the decorator does not accept.
    refused = {
        "model": stage.model is not None,
        "where": stage.where is not None,
        "delivery": stage.delivery != "exactly-once",
        "none": stage.none != "error",
        **{option: True for option in stage.options if option not in FRAME_STAGE_OPTIONS},
    }
    hint = "a stage on frames has no such option; leave it out, or do it in the function"
    yield from (f"{name}: {hint}" for name, is_given in refused.items() if is_given)


def _takes_one(handler: Any) -> bool:
    try:
        # bind, because optional arguments, *args and bound methods are allowed as well.
        inspect.signature(handler).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function written in C without a signature
        return True
    return True


def _of_join(stage: Stage, join: Join) -> Iterator[str]:  # noqa: C901 - a list of checks
    number = len(stage.sources)
    if number < 2:
        yield "source: a join takes items from two queues or more; name them in a list"
    if isinstance(join.on, Mapping) and set(join.on) != set(stage.sources):
        yield f"on: a path for each of its queues {stage.sources!r:.150}, not for {tuple(join.on)!r:.150}"
    # Paths of a mapping with wrong queues are checked all the same: all faults are reported at once.
    for path in join.on.values() if isinstance(join.on, Mapping) else [] if join.on is None else [join.on]:
        if not isinstance(path, str) or not all(path.split(".")):
            yield f"on: where the value stands in payloads, such as 'order.id', or None, not {path!r:.60}"
    if join.timeout is not None:
        yield from _raised(lambda: duration(join.timeout, "timeout", zero=False))
    for name, value, allowed in (("missing", join.missing, MISSING), ("late", join.late, LATE)):
        if value not in allowed:
            yield f"{name}: {' or '.join(map(repr, allowed))}, not {value!r:.60}"
        if value in allowed and value != "error" and join.timeout is None:
            yield f"{name}: {value!r} says nothing without a timeout; give one, or leave it out"
    yield from _of_join_functions(stage)
    if stage.frame is not None:
        yield "frame: a join takes payloads; join frames in the function of a stage on frames"
    if stage.where is not None:
        yield "where: a join takes all items of its queues; let a stage before it choose"
    if stage.delivery != "exactly-once":
        yield "delivery: a join is exactly once; leave it out"
    if stage.shared:
        yield "shared: an item that went elsewhere would be missed; give each stage a queue of its own"


def _of_join_functions(stage: Stage) -> Iterator[str]:
    """Yield the faults of a join's models, and of its handler."""
    models: Any = stage.model
    handler: Any = stage.handler
    number = len(stage.sources)
    if models is not None and (not isinstance(models, Sequence) or isinstance(models, str) or len(models) != number):
        yield f"model: a list with one for each of its {number} queues, None for any"
    else:
        for model in models or ():
            yield from _raised(partial(Codec, ENCODING, model))
    if stage.options.get("batch") is not None:  # the handler takes one list; the checks of any stage apply
        return
    if not callable(handler):
        yield f"handler: a function, not {type(handler).__name__}"
    elif any(is_function(kind, handler) for kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)):
        yield "handler: it is a generator, which would run nothing; return instead"
    else:
        yield from _raised(lambda: join_takes_job(handler, number))


def join_queue_faults(graph: Graph) -> Iterator[str]:
    """Return the faults of the queues in which the joins of a graph park their items."""
    queues = [*graph.outputs, *(graph.errors_of(part) for part in graph.stages)]
    queues += [queue for part in graph.stages for queue in (*part.sources, *part.targets)]
    named = {queue for queue in queues if isinstance(queue, str)}
    for stage in graph.joins:
        at = f"stage {stage.name!r:.150}: name"
        for queue in (graph.waiting_queue(stage), graph.pairs_queue(stage)):
            try:
                queue_name(queue)
            except QueueNameInvalid:
                hint = "which is no name of a queue; shorten it, or the pipeline's"
                yield f"{at}: its items wait in {queue!r:.150}, {hint}"
            if queue in named:
                yield f"{at}: {queue!r:.150} is where its own items wait or are joined; name that queue otherwise"


NAME_BYTES = 120
UNFIT_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories that a name must not have: they break lines, control a terminal, or have no UTF-8 encoding."""


def faults(graph: Graph) -> list[str]:
    """Return the faults of a graph, each once; an empty list if the graph is valid."""
    all_faults = [*_of_names(graph), *_of_queue_names(graph)]
    trail: Any = graph.trail
    if not (isinstance(trail, bool) or trail == "payloads"):
        all_faults.append(f"pipeline: trail: True, False or 'payloads', not {trail!r:.60}")
    if graph.log_errors not in get_args(LogErrors):
        all_faults.append(f"pipeline: log_errors: 'message' or 'type', not {graph.log_errors!r:.60}")
    for source in graph.sources:
        all_faults += [f"{_title(source)}: {fault}" for fault in source_faults(source)]
    for stage in graph.stages:
        all_faults += [
            f"{_title(stage)}: {fault}" for fault in (*stage_faults(graph, stage), *type_faults(graph, stage))
        ]
    all_faults += [*join_queue_faults(graph), *_of_routes(graph)]
    # Two checks may find the same fault; dict.fromkeys keeps the first one and the order.
    return list(dict.fromkeys(all_faults))


def _title(part: Stage | Source) -> str:
    return f"{'stage' if isinstance(part, Stage) else 'source'} {part.name!r:.150}"


def _of_names(graph: Graph) -> Iterator[str]:
    named = [(f"pipeline {graph.name!r:.150}", graph.name)]
    named += [(_title(stage), stage.name) for stage in graph.stages]
    named += [(_title(source), source.name) for source in graph.sources]
    for title, name in named:
        if not isinstance(name, str):
            yield f"{title}: name: a string, not {type(name).__name__}"
            continue
        if not name.strip():
            yield f"{title}: name: it cannot be empty; give it one"
        elif any(category(character) in UNFIT_CATEGORIES for character in name):
            yield f"{title}: name: it holds a control character or a line break; leave that out"
        # A lone surrogate is a fault of its own; without surrogatepass, encode would raise for it.
        size = len(name.encode(errors="surrogatepass"))
        if size > NAME_BYTES:
            yield f"{title}: name: {size} bytes in UTF-8, and {NAME_BYTES} is the limit"
    stages = Counter(stage.name for stage in graph.stages if isinstance(stage.name, str))
    sources = Counter(source.name for source in graph.sources if isinstance(source.name, str))
    for kind, counted in (("stage", stages), ("source", sources)):
        for name, times in counted.items():
            if times > 1:
                yield f"{kind} {name!r:.150}: {times} {kind}s have this name; give each a name= of its own"
    for name in stages.keys() & sources.keys():
        yield f"source {name!r:.150}: a stage has this name as well; give one of them a name= of its own"


def _of_queue_names(graph: Graph) -> Iterator[str]:
    names: list[tuple[str, str, Any]] = [("pipeline", "inputs", queue) for queue in graph.inputs or ()]
    names += [("pipeline", "outputs", queue) for queue in graph.outputs]
    names += [("pipeline", "errors", graph.errors)] if graph.errors is not None else []
    names += [(_title(source), "to", source.target) for source in graph.sources]
    for stage in graph.stages:
        subject = _title(stage)
        names += [(subject, "source", queue) for queue in stage.sources]
        names += [(subject, "to", queue) for queue in stage.targets]
        names += [(subject, "errors", stage.errors)] if isinstance(stage.errors, str) else []
    for subject, argument, queue in names:
        if isinstance(queue, list | tuple) and not subject.startswith("source"):
            yield f"{subject}: {argument}: it names no queue; name one, or declare a sink"
            continue
        try:
            queue_name(queue, argument)
        except QueueNameInvalid as invalid:
            yield f"{subject}: {invalid}"


def _of_routes(whole: Graph) -> Iterator[str]:
    """Yield the faults of the routes of items; queue names that are not strings are ignored."""
    if not (whole.stages or whole.sources):
        yield "pipeline: it has no stages; declare one with @pipeline.stage(…) or @pipeline.sink(…)"
        return
    for stage in whole.stages:
        if not stage.sources:
            yield f"{_title(stage)}: it takes items from no queue; name one"
        for argument, queues in (("source", stage.sources), ("to", stage.targets)):
            times = Counter(queue for queue in queues if isinstance(queue, str))
            twice = [queue for queue, number in times.items() if number > 1]
            yield from (f"{_title(stage)}: {argument}: {queue!r:.150} is given twice; name it once" for queue in twice)
    graph = whole.of_strings()
    readers: dict[str, list[Stage]] = {}
    for stage in graph.stages:
        for queue in dict.fromkeys(stage.sources):
            readers.setdefault(queue, []).append(stage)
    # Queues that are read: by a stage, or by a reader outside the pipeline that is declared for them.
    read: set[Any] = {*readers, *graph.outputs, graph.errors, *(graph.errors_of(stage) for stage in graph.stages)}
    yield from _of_targets(graph, read)
    yield from _of_readers(graph, readers)
    # With an invalid name among the inputs, stages behind it would be reported as unreachable too.
    if whole.inputs == graph.inputs:
        reachable = graph.find_reachable([*graph.entries, *graph.fed])
        for stage in graph.stages:
            if stage.sources and reachable.isdisjoint(stage.sources):
                names = ", ".join(f"{source!r:.150}" for source in stage.sources)
                yield (
                    f"{_title(stage)}: no item ever comes to {names}; send some there from another stage, or name the "
                    f"queue that they come in by in inputs= of the pipeline"
                )


def _of_targets(graph: Graph, read: Collection[Any]) -> Iterator[str]:
    """Yield the faults of targets, and of ``otherwise`` moves, which take the items that do not match a filter."""
    targets: list[tuple[Stage | Source, str]] = [(source, source.target) for source in graph.sources]
    targets += [(stage, target) for stage in graph.stages for target in stage.targets]
    for part, queue in targets:
        if queue not in read:
            yield (
                f"{_title(part)}: to: no stage takes items from {queue!r:.150}; declare one, or name the queue in "
                f"outputs= of the pipeline"
            )
    for stage in graph.stages:
        if not isinstance(stage.otherwise, Move):
            continue
        queue = stage.otherwise.to
        if queue not in (*stage.targets, *read):
            yield (
                f"{_title(stage)}: otherwise: {queue!r:.150} is not one of its targets, and no stage takes items from "
                f"it; declare a stage, or name the queue in outputs= of the pipeline"
            )
        if queue in stage.sources:
            yield (
                f"{_title(stage)}: otherwise: what does not fit would come back to {queue!r:.150} for ever; move it to "
                f"another queue, or Drop() it"
            )


def _of_readers(graph: Graph, readers: Mapping[str, list[Stage]]) -> Iterator[str]:
    for queue, stages in readers.items():
        if len(stages) > 1 and not all(stage.shared is True for stage in stages):
            names = ", ".join(f"{stage.name!r:.150}" for stage in stages)
            remedy = "give each shared=True if that is meant, or a queue of its own"
            if any(stage.join is not None for stage in stages):
                remedy = "a join shares its queues with nobody: give each a queue of its own"
            problem = f"stages {names} take items from it, and each item goes to one of them"
            yield f"queue {queue!r:.150}: {problem}; {remedy}"
    for queue in graph.inputs or ():
        if queue not in readers:
            yield f"pipeline: inputs: no stage takes items from {queue!r:.150}; declare one, or leave the queue out"
    filled = {*(route.queue for route in graph.routes), *graph.fed}
    for queue in graph.outputs:
        if queue not in filled:
            yield f"pipeline: outputs: no stage sends items to {queue!r:.150}; name it in to=, or leave the queue out"
