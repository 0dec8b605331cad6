"""Checks of a graph: each fault is one sentence that names the stage or queue and the remedy.

``faults`` checks the whole: start there. Each stage and source is checked on its own, and then the routes between them.
The types that handlers name in their annotations are checked against the models of the stages that they send to. Such
a fault is reported only when no payload at all could fit; open annotations are left to the run.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, get_origin
from unicodedata import category

from pydantic import BaseModel

from mongoq.data.arguments import choice, count, duration, expires, priority, queue_name
from mongoq.data.encoding.codec import Codec, Encoding, codec_options
from mongoq.data.operators import where_filter
from mongoq.data.outcomes import Drop, Move, Outcome
from mongoq.data.push_options import check_due, check_headers
from mongoq.data.settings import KEEP, Default, check_options
from mongoq.data.stream_claim import MAX_STREAM_CLAIM_ITEMS
from mongoq.errors import ArgumentInvalid, QueueNameInvalid
from mongoq.pipeline.frames.rows import FORMATS, frames_of
from mongoq.pipeline.graph.graph import (
    DEFAULT_BATCH,
    DEFAULT_LEASE_SECONDS,
    KEEP_SEQUENCE,
    LIMITS,
    SETTINGS_OF_QUEUES,
    STAGE_OPTIONS,
    Delivery,
    Frame,
    Graph,
    Join,
    OnNone,
    Source,
    Stage,
)
from mongoq.pipeline.graph.handlers import (
    CONTAINERS,
    SCALARS,
    argument_type,
    classes,
    elements,
    in_a_line,
    is_plain,
    may_hold,
    return_type,
    why_never,
)
from mongoq.pipeline.run.consumers import join_takes_job
from mongoq.worker.consumer import LogErrors, any_handler, consumer
from mongoq.worker.outcome_resolver import is_function
from mongoq.worker.sources import source_plan

ENCODING = Encoding(codec_options())
NAME_BYTES = 120
UNFIT_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories that a name must not have: they break lines, control a terminal, or have no UTF-8 encoding."""
MIN_LEASE_SECONDS = 1
"""Shortest lease of a frame stage in seconds: a stream extends a lease several times within its length."""
FRAME_STAGE_OPTIONS = ("lease", "retry", "max_retries", "history")


def faults(graph: Graph) -> list[str]:
    """Return the faults of a graph, each once; an empty list if the graph is valid."""
    all_faults = list(_check_names(graph))
    trail: Any = graph.trail
    if not (isinstance(trail, bool) or trail == "payloads"):
        all_faults.append(f"pipeline: trail: True, False or 'payloads', not {trail!r:.60}")
    all_faults += [f"pipeline: {fault}" for fault in _raised(choice, graph.log_errors, "log_errors", LogErrors)]
    for source in graph.sources:
        # Each value is checked alone, beside valid ones: source_plan raises at the first fault, and all are reported.
        # Async generators are valid: asyncio may run them.
        valid = {"batch": DEFAULT_BATCH, "every": None, "lease": DEFAULT_LEASE_SECONDS}
        handlers = {"handler": source.handler, **dict.fromkeys(valid, no_records)}
        for name, handler in handlers.items():
            options: dict[str, Any] = valid | {name: getattr(source, name)} if name in valid else valid
            found = _raised(source_plan, "", "", None, handler, coroutines=True, **options)
            all_faults += [f"{_title(source)}: {fault}" for fault in found]
    for stage in graph.stages:
        found = _check_stage(graph, stage)
        all_faults += [f"{_title(stage)}: {fault}" for fault in found]
    # Two checks may find the same fault; dict.fromkeys keeps the first one and the order.
    return list(dict.fromkeys([*all_faults, *_check_routes(graph)]))


def no_records(_position: Any) -> Iterator[Any]:
    """Return no record: a stand-in for the handler of a source."""
    yield from ()


def _title(part: Stage | Source) -> str:
    return f"{'stage' if isinstance(part, Stage) else 'source'} {part.name!r:.150}"


def _raised(check: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[str]:
    """Yield the fault that a check of these arguments raises, if it raises one."""
    try:
        check(*arguments, **options)
    except ArgumentInvalid as invalid:
        yield in_a_line(invalid)


def _check_names(graph: Graph) -> Iterator[str]:
    parts: list[Stage | Source] = [*graph.stages, *graph.sources]
    for title, name in [(f"pipeline {graph.name!r:.150}", graph.name), *((_title(part), part.name) for part in parts)]:
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

    names: list[tuple[str, str, Any]] = [("pipeline", "inputs", queue) for queue in graph.inputs or ()]
    names += [("pipeline", "outputs", queue) for queue in graph.outputs]
    names += [("pipeline", "errors", graph.errors)] if graph.errors is not None else []
    names += [(_title(source), "to", source.target) for source in graph.sources]
    for stage in graph.stages:
        names += [(_title(stage), "source", queue) for queue in stage.sources]
        names += [(_title(stage), "to", queue) for queue in stage.targets]
        names += [(_title(stage), "errors", stage.errors)] if isinstance(stage.errors, str) else []
    for subject, argument, queue in names:
        if isinstance(queue, list | tuple) and not subject.startswith("source"):
            yield f"{subject}: {argument}: it names no queue; name one, or declare a sink"
            continue
        try:
            queue_name(queue, argument)
        except QueueNameInvalid as invalid:
            yield f"{subject}: {invalid}"


def _check_stage(graph: Graph, stage: Stage) -> Iterator[str]:
    yield from _check_values(graph, stage)
    if stage.format is not None:
        yield from _check_format(stage)
    if stage.join is not None:
        yield from _check_join(stage, stage.join)
    elif stage.frame is not None:
        yield from _check_frame(stage, stage.frame)
    else:
        yield from _raised(Codec, ENCODING, stage.model)
    if (stage.join is None and stage.frame is None) or stage.options.get("batch") is not None:
        yield from _raised(consumer, None, stage.handler, coroutines=True)
    yield from _check_options(stage)
    if stage.frame is None and callable(stage.handler):
        yield from _check_types(graph, stage)


def _check_values(graph: Graph, stage: Stage) -> Iterator[str]:
    """Yield the faults of the values that ``Stage`` holds itself, beside its options."""
    shared: Any = stage.shared
    own_errors: Any = stage.errors
    errors = graph.errors_of(stage)
    yield from _raised(choice, stage.delivery, "delivery", Delivery)
    yield from _raised(choice, stage.none, "none", OnNone)
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
        hint = "name another queue, or errors=None"
        yield f"errors: what fails would go back to {errors!r:.150}, which it takes items from; {hint}"
    if stage.where is not None:
        yield from _raised(where_filter, stage.where, ENCODING)
    if stage.where is not None and stage.otherwise is None:
        yield "where: say what becomes of the other items, with otherwise=Drop() or otherwise=Move(queue)"
    if stage.where is None and stage.otherwise is not None:
        yield "otherwise: there is no where= that an item could fail to fit; add one, or leave it out"

    if stage.otherwise is not None:
        yield from _check_otherwise(stage.otherwise)
    if stage.sequence is not None:
        yield from _check_sequence(stage, stage.sequence)


def _check_otherwise(outcome: Any) -> Iterator[str]:
    """Yield the faults of the outcome of the items that do not match the filter."""
    if isinstance(outcome, Drop):
        return
    if not isinstance(outcome, Move):
        yield f"otherwise: Drop() or Move(queue), not {outcome!r:.60}"
        return
    if outcome.sequence is not None:
        yield "otherwise: a filter moves no item into a sequence; let a handler do it"
    if outcome.payload is not KEEP or outcome.patch is not None:
        yield "otherwise: the move of items that do not fit leaves their payload alone; leave out payload= and patch="
    problems = [*_raised(queue_name, outcome.to, "otherwise"), *_raised(check_due, outcome.delay, outcome.when)]
    problems += _raised(expires, outcome.expires) if outcome.expires is not None else ()
    problems += _raised(priority, outcome.priority) if outcome.priority is not None else ()
    problems += _raised(check_headers, outcome.headers, ENCODING) if outcome.headers is not KEEP else ()
    yield from (fault if fault.startswith("otherwise") else f"otherwise: {fault}" for fault in problems)


def _check_sequence(stage: Stage, sequence: Any) -> Iterator[str]:
    """Yield the faults of ``sequence``, which decides where outputs wait for each other."""
    keeps = sequence == KEEP_SEQUENCE
    if not (keeps or callable(sequence)):
        yield f"sequence: a function of the payload, or 'keep' for the sequence of the input, not {sequence!r:.60}"
        return
    if stage.is_sink:
        yield "sequence: items end here, so no output enters one; leave it out"
    if stage.delivery == "at-most-once":
        yield "sequence: what is run at most once leaves its place before it runs, so its outputs have no order"
    if keeps and stage.join is not None:
        yield "sequence: the inputs of a join have several; give a function of the payload in place of 'keep'"
    kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction
    if not keeps and (any(is_function(kind, sequence) for kind in kinds) or not _takes_one(sequence)):
        yield "sequence: a plain function that takes one argument, the payload of an output; make it one"


def _check_format(stage: Stage) -> Iterator[str]:
    format: Any = stage.format
    if not isinstance(format, str) or format not in FORMATS:
        yield f"format: {' or '.join(map(repr, FORMATS))}, not {format!r:.60}"
        return
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
        names = _join_names(takes, by_package=True)
        yield f"format: the handler takes {names}, and is given a {FORMATS[format]}; change one of them"
    if returns and not (lists or NoneType in returns or any(may_hold(each, kind) for each in returns)):
        names = _join_names(returns, by_package=True)
        yield f"format: the handler returns {names}, where a {FORMATS[format]} is due; change one of them"


def _check_frame(stage: Stage, frame: Frame) -> Iterator[str]:
    """Yield the faults of a frame stage. Spark checks the types when the stage starts."""
    handler: Any = stage.handler
    schema, lease = frame.schema, stage.options.get("lease")
    kinds = inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction
    if not callable(handler) or any(is_function(kind, handler) for kind in kinds) or not _takes_one(handler):
        yield "handler: a plain function that takes one DataFrame, and returns one; no coroutine function, no generator"
    if not (schema.strip() if isinstance(schema, str) else schema is None or hasattr(schema, "fieldNames")):
        problem = "nothing" if isinstance(schema, str) else f"a value of type {type(schema).__name__}"
        yield f"schema: columns such as 'carrier string, dep_delay int', a StructType, or None, not {problem}"
    wrong_number = list(_raised(count, frame.items, "items"))
    yield from wrong_number
    if not wrong_number and frame.items > MAX_STREAM_CLAIM_ITEMS:
        yield f"items: {MAX_STREAM_CLAIM_ITEMS:,} at most, not {frame.items:,}"
    if frame.partitions is not None:
        yield from _raised(count, frame.partitions, "partitions")
    # A lease that is no duration is reported with the other options.
    is_length = lease is not None and not list(_raised(duration, lease, "lease", zero=False))
    if is_length and duration(lease, "lease").total_seconds() < MIN_LEASE_SECONDS:
        yield f"lease: of a stage on frames {MIN_LEASE_SECONDS} second at least, since a stream extends it"
    refused = (option for option in STAGE_OPTIONS if option not in FRAME_STAGE_OPTIONS)
    reason = "a stage on frames of Spark has no such option; leave it out, or do it in the function"
    yield from _refuse(stage, ("model", "where", "delivery", "none", "format", *refused), reason)


def _takes_one(handler: Any) -> bool:
    try:
        # bind, because optional arguments, *args and bound methods are allowed as well.
        inspect.signature(handler).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function written in C without a signature
        return True
    return True


def _check_join(stage: Stage, join: Join) -> Iterator[str]:
    models: Any = stage.model
    handler: Any = stage.handler
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
        yield from _raised(duration, join.timeout, "timeout", zero=False)
    choices = ("missing", join.missing, ("error", "pass")), ("late", join.late, ("error", "wait", "drop"))
    for name, value, allowed in choices:
        if value not in allowed:
            yield f"{name}: {' or '.join(map(repr, allowed))}, not {value!r:.60}"
        elif value != "error" and join.timeout is None:
            yield f"{name}: {value!r} says nothing without a timeout; give one, or leave it out"
    if models is not None and (not isinstance(models, Sequence) or isinstance(models, str) or len(models) != number):
        yield f"model: a list with one for each of its {number} queues, None for any"
    else:
        for model in models or ():
            yield from _raised(Codec, ENCODING, model)
    if stage.options.get("batch") is None:  # with it the handler takes one list, and the checks of any stage apply
        if not callable(handler):
            yield f"handler: a function, not {type(handler).__name__}"
        elif any(is_function(kind, handler) for kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)):
            yield "handler: it is a generator, which would run nothing; return instead"
        else:
            yield from _raised(join_takes_job, handler, number)
    refused = ("frame", "format", "where", "delivery", "shared", *LIMITS, "rate_key")
    yield from _refuse(
        stage, refused, "a join has no such option; leave it out, or give it to a stage before or behind"
    )


def _refuse(stage: Stage, names: Iterable[str], reason: str) -> Iterator[str]:
    """Yield a fault for each of these arguments that was given: a recipe may have any of them, whatever the stage."""
    defaults = {each.name: each.default for each in fields(Stage)}
    for name in names:
        given = getattr(stage, name) != defaults[name] if name in defaults else stage.options.get(name) is not None
        if given:
            yield f"{name}: {reason}"


def _check_options(stage: Stage) -> Iterator[str]:
    """Yield the faults of options: those that depend on each other or the stage, then each by itself."""
    options = stage.options
    limits = [*stage.limits, *(["rate_key"] if options.get("rate_key") is not None else [])]
    stops = options.get("on_timeout") in ("release", "cancel") and callable(stage.handler)
    if stops and options.get("max_time") is None:
        yield "on_timeout: it needs a max_time; give both, or none"
    elif stops and options["on_timeout"] == "cancel" and not is_function(inspect.iscoroutinefunction, stage.handler):
        yield "on_timeout: a plain function cannot be cancelled; take 'release', or make it a coroutine function"
    if limits and stage.frame is None and stage.join is None:  # those have no such options
        names, number = " and ".join(limits), len(stage.sources)
        if number > 1:
            yield f"{names}: limits belong to one queue, and it takes items from {number}; make a stage of each"
        if "rate_key" in limits and options.get("batch") is not None:
            yield "rate_key: the items of a batch start together; give batch= or rate_key=, not both"
    for option, value in options.items():
        if option == "max_retries" or option in SETTINGS_OF_QUEUES:
            # They are settings of the queue, which the consumer's own check does not know.
            yield from _raised(check_options, "", **{option: value})
        else:
            # Each option alone, beside defaults: the check raises at the first fault, and all are reported. Coroutine
            # functions are valid: asyncio may run them. A missing max_time is reported above.
            beside = {"max_time": 1} if option == "on_timeout" else {}
            yield from _raised(consumer, None, any_handler, coroutines=True, **beside, **{option: value})


SEVERAL_TYPES = (list, tuple, set, frozenset, Iterator, AsyncIterator)


def _check_types(graph: Graph, stage: Stage) -> Iterator[str]:
    """Yield the faults of what the handler takes and returns, by its annotations."""
    if stage.join is None and stage.format is None:
        yield from _check_argument(stage)
    if not stage.is_sink:
        yield from _check_result(graph, stage)


def _check_argument(stage: Stage) -> Iterator[str]:
    annotation = argument_type(stage.handler)
    kinds = classes(annotation)
    if stage.options.get("batch") is not None:
        if kinds and all(map(_is_one_payload, kinds)):
            yield f"model: the handler takes {_join_names(kinds)}, and with batch= it is given a list of payloads"
        kinds = classes(elements(annotation))
    if not kinds:
        return
    if stage.model is None:
        if all(issubclass(kind, BaseModel) or is_dataclass(kind) for kind in kinds):
            problem = f"the handler takes {_join_names(kinds)}, and without a model payloads come as they are stored"
            yield f"model: {problem}; add model={kinds[0].__name__}"
        return
    model: Any = get_origin(stage.model) or stage.model
    # A model makes values of a known class; only pydantic models in general may make any value.
    is_decided = isinstance(model, type) and (model in (*SCALARS, *CONTAINERS) or is_plain(model))
    if is_decided and not any(may_hold(kind, model) for kind in kinds):
        yield f"model: the handler takes {_join_names(kinds)}, and the model makes {model.__name__}; let them agree"


def _check_result(graph: Graph, stage: Stage) -> Iterator[str]:
    annotation = return_type(stage.handler)
    kinds = classes(annotation)
    if kinds is None:
        return
    if all(kind is NoneType for kind in kinds):
        if stage.none == "error":
            yield "the handler returns None, where a payload is due; return one, or declare a sink, or none='drop'"
        return
    if stage.options.get("batch") is not None:
        if stage.format is None and all(map(_is_one_payload, _payloads(kinds))):
            yield f"the handler returns {_join_names(kinds)}, and with batch= a list with an entry for each is due"
        kinds = classes(elements(annotation)) or []
    payloads = _payloads(kinds)
    if not payloads:
        return
    says = f"the handler returns {_join_names(payloads)}"
    if len(stage.targets) > 1:
        # A fault only if the handler returns no outcome at all: a Move among its types may choose the target.
        if len(payloads) == len([kind for kind in kinds if kind is not NoneType]):
            yield f"{says}, and of several targets it is to choose one; return a Move"
    elif all(issubclass(kind, SEVERAL_TYPES) for kind in payloads):
        yield f"{says}, where one payload is due; return that, or a document around it"
    else:
        for target, reader in ((queue, reader) for queue in stage.targets for reader in graph.readers(queue)):
            reasons = [why_never(kind, reader.model_of(target)) for kind in payloads]
            if all(reasons):
                problem = f"which stage {reader.name!r:.150} cannot take from {target!r:.150}: {reasons[0]}"
                yield f"{says}, {problem}; change one of them"


def _payloads(kinds: list[type]) -> list[type]:
    return [kind for kind in kinds if kind is not NoneType and not issubclass(kind, Outcome | BaseException)]


def _is_one_payload(kind: type) -> bool:
    return issubclass(kind, BaseModel | dict) or kind in SCALARS


def _join_names(kinds: list[type], *, by_package: bool = False) -> str:
    if not by_package:
        return " or ".join(kind.__name__ for kind in kinds)
    names = [f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}" for kind in kinds]
    return " or ".join(name.removeprefix("builtins.") for name in names)


def _check_routes(whole: Graph) -> Iterator[str]:
    """Yield the faults of the routes of items; names that are no strings are reported elsewhere."""
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
    graph = whole.in_words()
    readers: dict[str, list[Stage]] = {}
    for stage in graph.stages:
        for queue in dict.fromkeys(stage.sources):
            readers.setdefault(queue, []).append(stage)
    # Queues that are read: by a stage, or by a reader outside the pipeline that is declared for them.
    read: set[Any] = {*readers, *graph.outputs, graph.errors, *(graph.errors_of(stage) for stage in graph.stages)}
    yield from _check_targets(whole, read)
    for stage in graph.joins:
        at = f"{_title(stage)}: name"
        for queue in (graph.waiting_queue(stage), graph.pairs_queue(stage)):
            if list(_raised(queue_name, queue)):
                hint = "which is no name of a queue; shorten it, or the pipeline's"
                yield f"{at}: its items wait in {queue!r:.150}, {hint}"
            if queue in graph.queues:
                yield f"{at}: {queue!r:.150} is where its own items wait or are joined; name that queue otherwise"
    for queue, stages in readers.items():
        if len(stages) > 1 and not all(stage.shared is True for stage in stages):
            names = ", ".join(f"{stage.name!r:.150}" for stage in stages)
            remedy = "give each shared=True if that is meant, or a queue of its own"
            if any(stage.join is not None for stage in stages):
                remedy = "a join shares its queues with nobody: give each a queue of its own"
            problem = f"stages {names} take items from it, and each item goes to one of them"
            yield f"queue {queue!r:.150}: {problem}; {remedy}"
    for name in whole.inputs or ():
        if isinstance(name, str) and name not in readers:
            yield f"pipeline: inputs: no stage takes items from {name!r:.150}; declare one, or leave the queue out"
    filled = {*(route.queue for route in graph.routes), *graph.fed}
    for name in whole.outputs:
        if isinstance(name, str) and name not in filled:
            yield f"pipeline: outputs: no stage sends items to {name!r:.150}; name it in to=, or leave the queue out"
    reachable = graph.find_reachable([*graph.entries, *graph.fed])
    for stage in graph.stages:
        if stage.sources and reachable.isdisjoint(stage.sources):
            names = ", ".join(f"{source!r:.150}" for source in stage.sources)
            remedy = "send some there from another stage, or name the queue that they come in by in inputs="
            yield f"{_title(stage)}: no item ever comes to {names}; {remedy} of the pipeline"


def _check_targets(graph: Graph, read: set[Any]) -> Iterator[str]:
    """Yield the faults of targets, and of ``otherwise`` moves, which take the items that do not match a filter."""
    targets: list[tuple[Stage | Source, Any]] = [(source, source.target) for source in graph.sources]
    targets += [(stage, target) for stage in graph.stages for target in stage.targets]
    remedy = "or name the queue in outputs= of the pipeline"
    for part, queue in targets:
        if isinstance(queue, str) and queue not in read:
            yield f"{_title(part)}: to: no stage takes items from {queue!r:.150}; declare one, {remedy}"
    for stage in graph.stages:
        if not isinstance(stage.otherwise, Move) or not isinstance(stage.otherwise.to, str):
            continue
        queue, at = stage.otherwise.to, f"{_title(stage)}: otherwise"
        if queue not in (*stage.targets, *read):
            problem = f"{queue!r:.150} is not one of its targets, and no stage takes items from it"
            yield f"{at}: {problem}; declare a stage, {remedy}"
        if queue in stage.sources:
            problem = f"what does not fit would come back to {queue!r:.150} for ever"
            yield f"{at}: {problem}; move it to another queue, or Drop() it"
