"""Reader of recipes: pipelines as plain data, in a mapping or a file. All faults of a recipe are reported at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mongoq.errors import ArgumentInvalid, GraphInvalid
from mongoq.model.outcomes import Drop, Move
from mongoq.model.policy import Exponential, Fixed, Linear, RetryPolicy
from mongoq.model.settings import DEFAULT
from mongoq.pipeline.checks.graph import faults
from mongoq.pipeline.declare import FRAME
from mongoq.pipeline.graph.graph import BATCH, ITEMS, LEASE, Frame, Graph, Join, Source, Stage
from mongoq.pipeline.graph.handlers import ImportFailed, handler_name, import_object, in_a_line, names
from mongoq.pipeline.recipe.file import recipe_content
from mongoq.worker.consumer import PREFETCH_BYTES

__all__ = ["OPTIONS", "FramePart", "Part", "graph_of", "sentence"]


class Part(BaseModel):
    """Base of the parts: a mapping with a fixed set of keys."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def keys(cls) -> list[str]:
        """Return the keys that a part may have."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    def given_keys(self) -> dict[str, Any]:
        """Return the keys that the recipe has, with their values; defaults are left out."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


class PipelinePart(Part):
    """The whole recipe: a pipeline."""

    name: Any
    errors: Any = None
    inputs: Any = None
    outputs: Any = ()
    trail: Any = False
    sources: list[Any] = []
    stages: list[Any]


class SourcePart(Part):
    """One source."""

    name: Any = None
    to: Any
    handler: str
    batch: Any = BATCH
    every: Any = None
    lease: Any = LEASE


class StagePart(Part):
    """One stage; without ``to`` it is a sink."""

    name: Any = None
    source: Any = Field((), alias="from")
    to: Any = ()
    handler: str
    model: Any = None
    join: Any = None
    frame: Any = None
    where: Any = None
    otherwise: Any = None
    delivery: Any = "exactly-once"
    format: Any = None
    none: Any = "error"
    errors: Any = DEFAULT
    shared: Any = False
    concurrency: Any = None
    prefetch: Any = None
    prefetch_bytes: Any = PREFETCH_BYTES
    lease: Any = None
    retry: Any = None
    max_retries: Any = None
    success_on: Any = None
    max_time: Any = None
    on_timeout: Any = "log"
    batch: Any = None
    probe: Any = None


class JoinPart(Part):
    """Options of a join."""

    on: Any
    timeout: Any = None
    missing: Any = "error"
    late: Any = "error"


class FramePart(Part):
    """Options of a stage on Spark frames."""

    columns: Any = Field(None, alias="schema")
    items: Any = ITEMS
    partitions: Any = None


OPTIONS = (
    *("concurrency", "prefetch", "prefetch_bytes", "lease", "max_retries", "max_time", "on_timeout", "batch", "probe"),
)
"""Options of a consumer that a recipe holds as plain values."""


class MovePart(Part):
    """A move for items that do not match the filter."""

    to: Any
    delay: Any = None
    priority: Any = None
    headers: Any = None


class PolicyPart(Part):
    """A retry policy."""

    base: Any = None
    cap: Any = None
    jitter: Any = None


class _ExponentialPart(PolicyPart):
    factor: Any = None


POLICIES: dict[str, tuple[type[PolicyPart], type[RetryPolicy]]] = {
    "fixed": (PolicyPart, Fixed),
    "linear": (PolicyPart, Linear),
    "exponential": (_ExponentialPart, Exponential),
}


def sentence(part: type[Part], fault: Any) -> str:
    """Return a fault of a key that pydantic found, as a sentence in mongoq's words."""
    key = ".".join(str(step) for step in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"unknown key {key!r:.60}; it may have {', '.join(part.keys())}"
    if fault["type"] == "missing":
        return f"{key!r} is missing"
    return f"{key}: {fault['msg']}"


P = TypeVar("P", bound=Part)


def graph_of(recipe: Mapping[str, Any] | str | PathLike[str]) -> Graph:
    """Return the graph that a recipe describes, checked; its handlers and models are imported.

    Raises:
        GraphInvalid: the recipe has faults; the error lists all of them.
        ArgumentInvalid: the argument is no recipe, or PyYAML is not installed.
        OSError: the file cannot be opened.
    """
    title, content = recipe_content(recipe)
    reading = _Reading()
    graph = reading.graph(content)
    if graph is None:
        raise GraphInvalid(title, reading.faults)
    # Faults of the text come first, then those of the graph with stand-ins: the user mends all in one go.
    found = [*reading.faults, *faults(graph)]
    if found:
        raise GraphInvalid(graph.name, found)
    return graph


class _Reading:
    """Reader of one recipe: collects faults, and puts a stand-in in place of each wrong value.

    A stand-in causes no further faults, so that the rest of the recipe is checked as well.

    Attributes:
        faults: faults found so far.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []

    def graph(self, content: Any) -> Graph | None:
        """Return the graph, or ``None`` when too little of it is known to check it."""
        whole = self._part(PipelinePart, content, "recipe", name="recipe", stages=[])
        if whole is None or (self.faults and not whole.stages):
            return None
        sources = [self._source(told, place) for place, told in enumerate(whole.sources)]
        stages = [self._stage(told, place) for place, told in enumerate(whole.stages)]
        makers = tuple(source for source in sources if source is not None)
        known = tuple(stage for stage in stages if stage is not None)
        # Without a stage or source, the checks of the graph would report faults that are not there.
        if len(known) < len(stages) or len(makers) < len(sources):
            return None
        inputs = None if whole.inputs is None else names(whole.inputs)
        return Graph(whole.name, known, whole.errors, inputs, names(whole.outputs), whole.trail, makers)

    def _part(self, kind: type[P], told: Any, at: str, **stand_ins: Any) -> P | None:
        """Return a part without its wrong keys; ``None`` if a required key is wrong and has no stand-in."""
        if not isinstance(told, Mapping):
            self.faults.append(f"{at}: a mapping, not {type(told).__name__}")
            return None
        try:
            return kind.model_validate(dict(told))
        except ValidationError as invalid:
            wrong = invalid.errors(include_url=False, include_input=False, include_context=False)
        self.faults += [f"{at}: {sentence(kind, fault)}" for fault in wrong]
        # Leave the wrong keys out and validate again, so that the rest of the part is checked as well.
        bad = {fault["loc"][0] for fault in wrong}
        rest = {key: value for key, value in told.items() if isinstance(key, str) and key not in bad}
        try:
            return kind.model_validate(stand_ins | rest)
        except ValidationError:
            return None

    def _source(self, told: Any, place: int) -> Source | None:
        at = _place("sources", place, told)
        part = self._part(SourcePart, told, at, handler=SOURCE_STAND_IN)
        if part is None:
            return None
        handler = self._import(part.handler, f"{at}: handler", _source_stand_in)
        default = at if handler is _source_stand_in else handler_name(handler)
        name = default if part.name is None else part.name
        return Source(name, part.to, handler, part.batch, part.every, part.lease)

    def _stage(self, told: Any, place: int) -> Stage | None:
        at = _place("stages", place, told)
        part = self._part(StagePart, told, at, handler=STAND_IN)
        if part is None:
            return None
        given = part.given_keys()
        handler = self._import(part.handler, f"{at}: handler", _stand_in)
        default = at if handler is _stand_in else handler_name(handler)
        return Stage(
            name=default if part.name is None else part.name,
            sources=names(part.source),
            targets=names(part.to) or (part.to,) if "to" in given else (),
            handler=handler,
            model=self._model(part.model, f"{at}: model"),
            join=self._join(part.join, f"{at}: join"),
            frame=self._frame(part.frame, f"{at}: frame"),
            where=part.where,
            otherwise=self._otherwise(part.otherwise, f"{at}: otherwise"),
            delivery=part.delivery,
            none=part.none,
            errors=part.errors,
            shared=part.shared,
            format=part.format,
            options=self._options(given, at),
        )

    def _model(self, told: Any, at: str) -> Any:
        if isinstance(told, list):
            return [self._model(one, f"{at}[{place}]") for place, one in enumerate(told)]
        if told is None or isinstance(told, str):
            return None if told is None else self._import(told, at, None)
        self.faults.append(f"{at}: where it is imported from, such as 'app.models:Flight', not {told!r:.60}")
        return None

    def _join(self, told: Any, at: str) -> Join | None:
        if isinstance(told, Mapping) and True in told and "on" not in told:  # YAML 1.1 reads on without quotes as True
            told = {"on" if key is True else key: value for key, value in told.items()}
        part = None if told is None else self._part(JoinPart, told, at, on=None)
        return None if part is None else Join(**part.given_keys())

    def _frame(self, told: Any, at: str) -> Frame | None:
        part = None if told is None else self._part(FramePart, told, at)
        return None if part is None else Frame(part.columns, part.items, part.partitions)

    def _import(self, path: Any, at: str, stand_in: Any) -> Any:
        try:
            return import_object(path)
        except ImportFailed as failed:
            self.faults.append(f"{at}: {failed}")
            return stand_in

    def _otherwise(self, told: Any, at: str) -> Drop | Move | None:
        if told is None or told == "drop":
            return None if told is None else Drop()
        if not isinstance(told, Mapping) or set(told) != {"move"}:
            self.faults.append(f"{at}: 'drop', or {{'move': {{'to': …}}}}, not {told!r:.60}")
            return Drop()
        part = self._part(MovePart, told["move"], f"{at}.move")
        return Drop() if part is None else Move(**part.given_keys())

    def _options(self, given: Mapping[str, Any], at: str) -> dict[str, Any]:
        options = {option: given[option] for option in OPTIONS if option in given}
        if given.get("format") is not None:
            options.setdefault("batch", FRAME)
        if "retry" in given:
            options["retry"] = self._retry(given["retry"], f"{at}: retry")
        if "success_on" in given:
            options["success_on"] = tuple(
                self._import(path, f"{at}: success_on", Exception) for path in names(given["success_on"])
            )
        return options

    def _retry(self, told: Any, at: str) -> RetryPolicy | None:
        if told is None:
            return None
        kind = next(iter(told)) if isinstance(told, Mapping) and len(told) == 1 else None
        if kind not in POLICIES:
            self.faults.append(f"{at}: {{kind: {{…}}}} with one of {', '.join(POLICIES)}, not {told!r:.60}")
            return None
        part, policy = POLICIES[kind]
        values = self._part(part, {} if told[kind] is None else told[kind], f"{at}.{kind}")
        try:
            return None if values is None else policy(**values.given_keys())
        except ArgumentInvalid as invalid:
            self.faults.append(f"{at}.{kind}: {in_a_line(invalid)}")
            return None


def _place(kind: str, place: int, told: Any) -> str:
    """Return the name that faults use for an entry of a list."""
    name = told.get("name") if isinstance(told, Mapping) else None
    return f"{kind}[{place}] ({name!r:.150})" if isinstance(name, str) else f"{kind}[{place}]"


def _stand_in(_payload: Any, job: Any) -> Any:
    """Stand-in for a handler that could not be imported, so that the rest of the recipe is checked."""
    return job


def _source_stand_in(_position: Any) -> Iterator[Any]:
    """Stand-in for the handler of a source."""
    yield from ()


SOURCE_STAND_IN = f"{__name__}:{_source_stand_in.__name__}"
STAND_IN = f"{__name__}:{_stand_in.__name__}"
