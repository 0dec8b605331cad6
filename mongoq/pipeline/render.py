"""Text and diagrams of a graph, ``description`` and ``mermaid``, and its ``differences`` from another one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mongoq.data.outcomes import Drop, Move
from mongoq.data.settings import DEFAULT, KEEP
from mongoq.pipeline.graph.graph import DEFAULT_BATCH, DEFAULT_LEASE_SECONDS, PLAIN_FIELDS, Graph, Source, Stage
from mongoq.pipeline.graph.handlers import import_path, model_name, names, quote_if_odd

LABEL_WIDTH = 11


def description(graph: Graph) -> str:
    """Return the description of a pipeline as text."""
    graph = graph.in_words()
    parts = [("pipeline", graph.name, _whole(graph))]
    parts += [("source", source.name, _source(source)) for source in graph.sources]
    parts += [("stage", stage.name, _stage(graph, stage)) for stage in graph.stages]
    return "\n\n".join(
        "\n".join([f"{kind} {quote_if_odd(name)}", *(f"  {fact:<{LABEL_WIDTH}} {value}" for fact, value in facts)])
        for kind, name, facts in parts
    )


def _whole(graph: Graph) -> Iterator[tuple[str, str]]:
    entries = graph.entries
    # Without declared inputs, a queue of failures looks like an entry: a stage reads it, and no handler writes it.
    if graph.inputs is None:
        failures = {route.queue for route in graph.routes if route.kind == "errors"}
        entries = tuple(queue for queue in entries if queue not in failures)
    yield "in", _join_names(entries)
    yield "out", _join_names(graph.outputs)
    yield "errors", "none: a stage stops" if graph.errors is None else quote_if_odd(graph.errors)
    if graph.trail:
        yield "trail", "with payloads" if graph.trail == "payloads" else "yes"


def _source(source: Source) -> Iterator[tuple[str, str]]:
    yield "gives", quote_if_odd(source.target)
    yield "handler", quote_if_odd(import_path(source.handler))
    defaults = {"every": None, "batch": DEFAULT_BATCH, "lease": DEFAULT_LEASE_SECONDS}
    for name, default in defaults.items():
        if (value := getattr(source, name)) != default:
            yield name, _brief(value)


def _stage(graph: Graph, stage: Stage) -> Iterator[tuple[str, str]]:
    yield "takes", _join_names(stage.sources) + (", shared" if stage.shared else "")
    yield "gives", _join_names(stage.targets) if stage.targets else "nothing: items end here"
    if (join := stage.join) is not None:
        on = "the first of each" if join.on is None else f"on {quote_if_odd(join.on)}"
        if isinstance(join.on, Mapping):
            paths = (f"{quote_if_odd(path)} of {quote_if_odd(source)}" for source, path in join.on.items())
            on = f"on {', '.join(paths)}"
        yield "joins", on
        if join.timeout is not None:
            yield "timeout", f"{_brief(join.timeout)}, then {join.missing}; who is late: {join.late}"
    if (frame := stage.frame) is not None:
        yield "runs", "on Spark, on frames"
        # Spark's name for the type of a row; a schema that is not a type is shown as it is.
        named = getattr(frame.schema, "simpleString", None)
        schema = named() if callable(named) else frame.schema
        yield "schema", "the payload as JSON" if schema is None else _brief(schema)
        yield "items", f"{_brief(frame.items)} a frame at most"
        if frame.partitions is not None:
            yield "partitions", _brief(frame.partitions)
    # The sources that its own items may come back to.
    later = graph.find_reachable(route.queue for route in graph.routes if route.stage is stage)
    if back := [source for source in stage.sources if source in later]:
        yield "loop", f"its items may come back to {_join_names(back)}"
    errors = graph.errors_of(stage)
    yield "errors", "none: it stops" if errors is None else quote_if_odd(errors)
    yield "handler", quote_if_odd(import_path(stage.handler))
    if stage.format is not None:
        yield "format", quote_if_odd(stage.format)
    if stage.model is not None:
        models = stage.model if stage.join is not None and isinstance(stage.model, list | tuple) else [stage.model]
        yield "model", ", ".join("any" if model is None else quote_if_odd(model_name(model)) for model in models)
    if stage.where is not None:
        yield "where", _brief(stage.where)
    if stage.otherwise is not None:
        outcome, text = stage.otherwise, "drop" if isinstance(stage.otherwise, Drop) else _brief(stage.otherwise)
        if isinstance(outcome, Move):
            values = {name: getattr(outcome, name) for name in ("delay", "when", "priority", "expires", "headers")}
            given = [f"{name} {_brief(value)}" for name, value in values.items() if value not in (None, KEEP)]
            text = ", ".join([f"move to {quote_if_odd(outcome.to)}", *given])
        yield "otherwise", text
    yield "delivery", quote_if_odd(stage.delivery)
    if stage.none != "error":
        yield "none", quote_if_odd(stage.none)
    for name, value in {"sequence": stage.sequence, **stage.options}.items():
        if name in ("sequence", "rate_key") and callable(value):
            yield name, f"by {quote_if_odd(import_path(value))}"
        elif name != "sequence" or value is not None:
            yield name, _brief(value)


def _join_names(names: Iterable[Any]) -> str:
    return ", ".join(map(quote_if_odd, names)) or "none"


def _brief(value: Any) -> str:
    """Return a value on one line."""
    if isinstance(value, type):
        return quote_if_odd(import_path(value))
    if isinstance(value, list | tuple) and any(isinstance(part, type) for part in value):
        return ", ".join(map(_brief, value))
    return f"{' '.join(repr(value).split()):.500}"


LITERAL = re.compile(r"[^\w ./:+-]")


def mermaid(graph: Graph) -> str:
    """Return the text of the flowchart. A node keeps its id when other nodes are added or removed."""
    graph = graph.in_words()
    lines = ["flowchart LR"]
    lines += [f'    {_id("queue", queue)}(["{_label(queue)}"])' for queue in graph.queues]
    lines += [f'    {_id("stage", stage.name)}["{_label(stage.name)}"]' for stage in graph.stages]
    lines += [f'    {_id("source", source.name)}[("{_label(source.name)}")]' for source in graph.sources]
    lines += [f"    {_id('source', source.name)} --> {_id('queue', source.target)}" for source in graph.sources]
    for stage in graph.stages:
        lines += [f"    {_id('queue', source)} --> {_id('stage', stage.name)}" for source in stage.sources]
    for route in graph.routes:
        arrow = "-->" if route.kind == "to" else f"-. {route.kind} .->"
        lines.append(f"    {_id('stage', route.stage.name)} {arrow} {_id('queue', route.queue)}")
    return "\n".join(lines)


def _id(kind: str, name: object) -> str:
    """Return an id of letters, digits and underscores; different names have different ids."""
    # A graph with faults is drawn as well, so a name may be of any type.
    text = name if isinstance(name, str) else f"{name!r:.150}"
    return f"{kind}_{re.sub('[^A-Za-z0-9]', lambda match: f'_{ord(match[0]):x}_', text)}"


def _label(name: object) -> str:
    """Return a name that Mermaid and the browser read as text, without markup."""
    return LITERAL.sub(lambda match: f"#{ord(match[0])};", quote_if_odd(name))


# --- differences ---------------------------------------------------------------------------------

PIPELINE_FIELDS = ("name", "errors", "inputs", "outputs", "trail")
SOURCE_FIELDS = ("target", "batch", "every", "lease")
STAGE_FIELDS = ("sources", "targets", *PLAIN_FIELDS, "join", "frame")
UNORDERED_FIELDS = ("sources", "targets", "inputs", "outputs", "success_on")
Subject = Literal["pipeline", "source", "stage", "queue"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between a pipeline and another one.

    Attributes:
        subject: kind of the part that differs.
        name: name of the stage, source or queue, as in the first pipeline.
        change: ``"added"`` if only the other pipeline has the stage, source or queue; ``"removed"`` if only the first.
        field: the changed field, such as ``"targets"`` or ``"concurrency"``.
        before: value in the first pipeline; ``DEFAULT`` where it was not given. Handlers and models are import paths.
        after: value in the other pipeline.
    """

    subject: Subject
    name: Any
    change: Literal["added", "removed", "changed"]
    field: str | None = None
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        """Return the difference as one line."""
        what = f"{self.subject} {self.name!r}"
        if self.field is None:
            return f"{what} was {self.change}"
        return f"{what}: {self.field} was {self.before!r}, and is {self.after!r}"


def differences(graph: Graph, other: Graph) -> list[Difference]:
    """Return the differences of the other graph: first the pipeline's own, then sources, stages and queues."""
    before, after = ({field: getattr(each, field) for field in PIPELINE_FIELDS} for each in (graph, other))
    found = _changes("pipeline", graph.name, before, after)
    of_parts: list[tuple[Subject, Sequence[Stage | Source], Sequence[Stage | Source]]] = [
        ("source", graph.sources, other.sources),
        ("stage", graph.stages, other.stages),
    ]
    for subject, own_parts, other_parts in of_parts:
        ours, theirs = _by_name(own_parts), _by_name(other_parts)
        for name, part in ours.items():
            if name in theirs:
                found += _changes(subject, part.name, _facts(part), _facts(theirs[name]))
            else:
                found.append(Difference(subject, part.name, "removed"))
        found += [Difference(subject, part.name, "added") for name, part in theirs.items() if name not in ours]
    queues, other_queues = graph.in_words().queues, other.in_words().queues
    found += [Difference("queue", queue, "removed") for queue in queues if queue not in other_queues]
    return found + [Difference("queue", queue, "added") for queue in other_queues if queue not in queues]


def _changes(subject: Subject, name: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    changes = []
    for field in {**before, **after}:
        one, other = before.get(field, DEFAULT), after.get(field, DEFAULT)
        if field in UNORDERED_FIELDS and isinstance(one, tuple) and isinstance(other, tuple):
            # By repr, because values of a graph that was not checked may be of types that cannot be ordered.
            same = sorted(map(repr, one)) == sorted(map(repr, other))
        else:
            same = _equal(one, other)
        if not same:
            changes.append(Difference(subject, name, "changed", field, one, other))
    return changes


def _by_name(parts: Sequence[Stage | Source]) -> dict[str, Stage | Source]:
    # A graph with faults is compared as well, so a name may be of any type.
    return {part.name if isinstance(part.name, str) else repr(part.name): part for part in parts}


def _facts(part: Stage | Source) -> dict[str, Any]:
    fields = SOURCE_FIELDS if isinstance(part, Source) else STAGE_FIELDS
    facts = {"handler": import_path(part.handler)} | {field: getattr(part, field) for field in fields}
    if isinstance(part, Source):
        return facts
    if part.join is not None and isinstance(part.model, list | tuple):
        facts["model"] = tuple(None if model is None else model_name(model) for model in part.model)
    elif part.model is not None:
        facts["model"] = model_name(part.model)
    if callable(part.sequence):
        facts["sequence"] = import_path(part.sequence)
    options = dict(part.options)
    if "success_on" in options:
        options["success_on"] = tuple(map(import_path, names(options["success_on"])))
    if callable(options.get("rate_key")):
        options["rate_key"] = import_path(options["rate_key"])
    return facts | options


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal; ``True`` and ``1`` differ, because a filter distinguishes them."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(part, other[key]) for key, part in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)
