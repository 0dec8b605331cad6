"""Differences between two graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mongoq.data.settings import DEFAULT
from mongoq.pipeline.graph.graph import PLAIN_FIELDS, Graph, Source, Stage
from mongoq.pipeline.graph.handlers import import_path, model_name

PIPELINE_FIELDS = ("name", "errors", "inputs", "outputs", "trail")
SOURCE_FIELDS = ("target", "batch", "every", "lease")
STAGE_FIELDS = ("sources", "targets", *PLAIN_FIELDS, "join", "frame")
UNORDERED_FIELDS = ("sources", "targets", "inputs", "outputs", "success_on")


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

    subject: Literal["pipeline", "source", "stage", "queue"]
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


Subject = Literal["pipeline", "source", "stage", "queue"]


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
    values = {field: (before.get(field, DEFAULT), after.get(field, DEFAULT)) for field in {**before, **after}}
    return [
        Difference(subject, name, "changed", field, *two) for field, two in values.items() if not _same(field, *two)
    ]


def _by_name(parts: Sequence[Stage | Source]) -> dict[tuple[str, int], Stage | Source]:
    """Return the parts by name; parts with equal names, which ``check`` refuses, are numbered."""
    named_parts: dict[tuple[str, int], Stage | Source] = {}
    for part in parts:
        name = part.name if isinstance(part.name, str) else repr(part.name)
        named_parts[name, sum(other == name for other, _ in named_parts)] = part
    return named_parts


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
    for option in ("success_on", "rate_key"):
        if isinstance(value := options.get(option), list | tuple):
            options[option] = tuple(map(import_path, value))
        elif callable(value):
            options[option] = import_path(value) if option == "rate_key" else (import_path(value),)
    return facts | options


def _same(field: str, one: Any, other: Any) -> bool:
    if field in UNORDERED_FIELDS and isinstance(one, tuple) and isinstance(other, tuple):
        # By repr, because values of a graph that was not checked may be of types that cannot be ordered.
        return sorted(map(repr, one)) == sorted(map(repr, other))
    return _equal(one, other)


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal; ``True`` and ``1`` differ, because a filter distinguishes them."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(part, other[key]) for key, part in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)
