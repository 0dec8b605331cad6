"""The graph of a pipeline as plain data: its stages, the queues between them, and the routes that items take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal, Self

from mongoq.data.arguments import Duration
from mongoq.data.item import Item
from mongoq.data.join_state import FOREVER, qualify
from mongoq.data.outcomes import Drop, Move
from mongoq.data.settings import DEFAULT, Default
from mongoq.errors import ArgumentInvalid
from mongoq.worker.consumer import LogErrors

DEFAULT_BATCH = 1_000
DEFAULT_LEASE_SECONDS = 30
Delivery = Literal["exactly-once", "at-most-once"]
OnNone = Literal["error", "drop"]
KEEP_SEQUENCE: Final = "keep"
"""Value of ``sequence`` of a stage whose outputs stay in the sequence of their input."""
OutputSequence = Callable[[Any], str | None] | Literal["keep"]
"""Where the sequence of an output comes from: a function of its payload, or the input."""
Trail = Literal[True, False, "payloads"]
LIMITS = ("max_running", "rate", "burst")
"""Options of a stage that are limits of its queue."""
SETTINGS_OF_QUEUES = ("history", *LIMITS)
"""Options of a stage that are settings of its queues: they are stored with them."""
STAGE_OPTIONS = (
    *("concurrency", "prefetch", "prefetch_bytes", "lease", "retry", "max_retries", "success_on"),
    *("max_time", "on_timeout", "batch", "probe", *SETTINGS_OF_QUEUES, "rate_key"),
)
"""Options of a stage's consumers and of its queues, by the names that decorators and recipes give them."""
PLAIN_FIELDS = ("model", "where", "otherwise", "delivery", "none", "errors", "shared", "sequence", "format")
"""Fields of a stage that hold an argument of its decorator as it was given."""
DEFAULT_FRAME_BATCH = 1_000
"""Default of ``batch`` of a stage with a format: items of one frame, at most."""
DEFAULT_FRAME_ITEMS = 10_000
"""Default number of items of a frame, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """One source as it was declared, with the arguments of ``Pipeline.source``; values are checked with the graph."""

    name: Any
    target: Any
    handler: Callable[..., Any]
    batch: int = DEFAULT_BATCH
    every: Duration | None = None
    lease: Duration = DEFAULT_LEASE_SECONDS


@dataclass(frozen=True, slots=True)
class Join:
    """Options of a join as they were declared, with the arguments of ``Pipeline.join``."""

    on: Any
    timeout: Any = None
    missing: Any = "error"
    late: Any = "error"

    def path(self, source: str) -> str | None:
        """Return the path of the common value in the payloads of a queue."""
        path = self.on[source] if isinstance(self.on, Mapping) else self.on
        return None if path is None else str(path)


@dataclass(frozen=True, slots=True)
class Frame:
    """Options of a stage on Spark frames as they were declared, with the arguments of ``Pipeline.frame_stage``."""

    schema: Any = None
    items: Any = DEFAULT_FRAME_ITEMS
    partitions: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One stage as it was declared, with the arguments of its decorator; values are checked with the graph.

    Attributes:
        sources: queues that it takes items from; any of them.
        targets: queues that items may go to; empty for a sink, where items end.
        handler: called with a payload or a list of payloads, and with the job if it takes two arguments.
        format: frame format of its batches, ``"pandas"`` or ``"arrow"``; ``None``: the handler takes payloads.
        join: options of a join, whose handler takes one item of each source; ``None``: not a join.
        frame: options of a stage on Spark DataFrames; ``None``: the handler takes payloads.
        options: those of ``STAGE_OPTIONS`` that were given.
    """

    name: Any
    sources: tuple[Any, ...]
    targets: tuple[Any, ...]
    handler: Callable[..., Any]
    model: Any = None
    where: Mapping[str, Any] | None = None
    otherwise: Drop | Move | None = None
    delivery: Delivery = "exactly-once"
    none: OnNone = "error"
    errors: str | Default | None = DEFAULT
    shared: bool = False
    sequence: Any = None
    format: Any = None
    join: Join | None = None
    frame: Frame | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def limits(self) -> dict[str, Any]:
        """Limits of its queue that were given."""
        return {name: self.options[name] for name in LIMITS if name in self.options}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of its queues that were given."""
        return {name: self.options[name] for name in SETTINGS_OF_QUEUES if name in self.options}

    def model_of(self, source: Any) -> Any:
        """Return the type of the payloads of one of its sources, or ``None`` for any."""
        if self.join is None or self.model is None:
            return self.model
        return dict(zip(self.sources, self.model, strict=False)).get(source)

    @property
    def is_sink(self) -> bool:
        """True when items end here."""
        return not self.targets


@dataclass(frozen=True, slots=True)
class Waiting:
    """An item that waits for its partners.

    Attributes:
        stage: name of the join.
        queue: queue that the item came by.
        value: value that its partners must have; ``None`` where the first items of all queues belong together.
        since: time when it came.
        until: time when its wait ends; ``None`` for no limit.
        item: the item, with its payload as it is stored.
    """

    stage: str
    queue: str
    value: Any
    since: datetime
    until: datetime | None
    item: Item[Any]

    @classmethod
    def of(cls, stage: Stage, item: Item[Any]) -> Self:
        """Return the description of a waiting item, from its stored fields."""
        document = item.stored("parked")
        parked: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
        until = parked.get("until")
        return cls(
            stage=stage.name,
            queue=parked.get("queue", item.queue),
            value=parked.get("value"),
            since=parked.get("at", item.read_at),
            until=until if isinstance(until, datetime) and until < FOREVER else None,
            item=item,
        )


@dataclass(frozen=True, slots=True)
class Route:
    """One route out of a stage.

    Attributes:
        stage: stage that items come from.
        queue: queue that they go to.
        kind: ``"to"``: the handler sends them; ``"otherwise"``: they do not match the filter; ``"errors"``: they have
            failed for good.
    """

    stage: Stage
    queue: str
    kind: Literal["to", "otherwise", "errors"]


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Everything that a pipeline declares.

    Attributes:
        name: name of the pipeline.
        stages: stages in the order of their declaration.
        errors: queue of failures, unless a stage has its own; ``None``: a stage stops at a failure.
        inputs: queues that items enter by; ``None``: the queues that stages read and no stage or source writes.
        outputs: queues that readers outside the pipeline take items from.
        trail: True if each hop is recorded on the item; ``"payloads"``: with the payload before it.
        sources: sources of items, in the order of their declaration.
        chosen: names of the stages and sources that a run works on; ``None`` for all.
        hooks: context managers around each call of a handler, the outermost first.
        log_errors: what logs say of the errors of handlers: their ``"message"``, or their ``"type"`` alone.
    """

    name: Any
    stages: tuple[Stage, ...]
    errors: Any = None
    inputs: tuple[Any, ...] | None = None
    outputs: tuple[Any, ...] = ()
    trail: Trail = False
    sources: tuple[Source, ...] = ()
    chosen: frozenset[str] | None = None
    hooks: tuple[Callable[..., Any], ...] = ()
    log_errors: LogErrors = "message"

    def only(self, names: Sequence[str] | None) -> Graph:
        """Return the graph for a run of some of its stages and sources; ``None`` for all of them.

        Raises:
            ArgumentInvalid: a stage or source does not exist, or the list is empty.
        """
        if names is None:
            return self
        listed = [names] if isinstance(names, str) else names
        if not isinstance(listed, list | tuple | set | frozenset) or not all(isinstance(name, str) for name in listed):
            raise ArgumentInvalid("stages", f"names of stages and sources, not {names!r:.60}")
        chosen = frozenset(listed)
        part_names = [*(source.name for source in self.sources), *(stage.name for stage in self.stages)]
        strange = sorted(map(repr, chosen.difference(part_names)))
        if strange or not chosen:
            what = f"pipeline {self.name!r} has no {', '.join(strange)}" if strange else "this names none"
            raise ArgumentInvalid("stages", f"{what}; it has {', '.join(map(repr, part_names))}")
        return replace(self, chosen=chosen)

    @property
    def own_stages(self) -> tuple[Stage, ...]:
        """Stages that a run works on."""
        return tuple(stage for stage in self.stages if self.chosen is None or stage.name in self.chosen)

    @property
    def own_sources(self) -> tuple[Source, ...]:
        """Sources that a run works on."""
        return tuple(source for source in self.sources if self.chosen is None or source.name in self.chosen)

    def errors_of(self, stage: Stage) -> Any:
        """Return the queue of a stage's failures, or ``None``."""
        return self.errors if isinstance(stage.errors, Default) else stage.errors

    def readers(self, queue: Any) -> list[Stage]:
        """Return the stages that take items from a queue."""
        return [stage for stage in self.stages if queue in stage.sources]

    @property
    def fed(self) -> tuple[Any, ...]:
        """Queues that sources push to."""
        return tuple(dict.fromkeys(source.target for source in self.sources))

    @property
    def entries(self) -> tuple[Any, ...]:
        """Queues that items enter by from outside the pipeline; queues that sources push to are in ``fed``."""
        if self.inputs is not None:
            return self.inputs
        sources = dict.fromkeys(source for stage in self.stages for source in stage.sources)
        targets = {*self.fed, *(target for stage in self.stages for target in stage.targets)}
        return tuple(queue for queue in sources if queue not in targets)

    # --- queues of joins -------------------------------------------------------------------------

    @property
    def joins(self) -> list[Stage]:
        """Stages that are joins."""
        return [stage for stage in self.stages if stage.join is not None]

    def waiting_queue(self, stage: Stage) -> str:
        """Return the name of the queue where items of a join wait for their partners."""
        return f"{qualify(self.name, stage.name, '.')}.waiting"

    def pairs_queue(self, stage: Stage) -> str:
        """Return the name of the queue of the joined items of a join."""
        return f"{qualify(self.name, stage.name, '.')}.joined"

    # --- routes of items -------------------------------------------------------------------------

    @property
    def routes(self) -> list[Route]:
        """Routes out of all stages; the names of their queues have to be strings."""
        return [route for stage in self.stages for route in self._routes_of(stage)]

    def _routes_of(self, stage: Stage) -> Iterator[Route]:
        yield from (Route(stage, queue, "to") for queue in stage.targets)
        if isinstance(stage.otherwise, Move):
            yield Route(stage, stage.otherwise.to, "otherwise")
        errors = self.errors_of(stage)
        if errors is not None:
            yield Route(stage, errors, "errors")

    @property
    def queues(self) -> list[str]:
        """Queues of the graph, each once, in the order of their first mention."""
        names = [*(self.inputs or ()), *self.fed]
        for stage in self.stages:
            names += [*stage.sources, *(route.queue for route in self._routes_of(stage))]
        return list(dict.fromkeys([*names, *self.outputs]))

    def find_reachable(self, start: Iterable[str]) -> set[str]:
        """Return the queues that an item from the start queues can reach, the start queues included."""
        next_to: dict[str, list[str]] = {}
        for route in self.routes:
            for source in route.stage.sources:
                next_to.setdefault(source, []).append(route.queue)
        reached: set[str] = set()
        waiting = list(start)
        # A loop over a list, not recursion: graphs may have cycles and long chains.
        while waiting:
            queue = waiting.pop()
            if queue not in reached:
                reached.add(queue)
                waiting += next_to.get(queue, ())
        return reached

    def in_words(self) -> Graph:
        """Return the graph with queue names that are not strings replaced by their ``repr``."""

        def word(name: Any) -> str:
            return name if isinstance(name, str) else f"{name!r:.150}"

        def convert(stage: Stage) -> Stage:
            otherwise, errors = stage.otherwise, self.errors_of(stage)
            return replace(
                stage,
                sources=tuple(map(word, stage.sources)),
                targets=tuple(map(word, stage.targets)),
                otherwise=replace(otherwise, to=word(otherwise.to)) if isinstance(otherwise, Move) else otherwise,
                errors=None if errors is None else word(errors),
            )

        return replace(
            self,
            sources=tuple(replace(source, target=word(source.target)) for source in self.sources),
            stages=tuple(map(convert, self.stages)),
            errors=None if self.errors is None else word(self.errors),
            inputs=None if self.inputs is None else tuple(map(word, self.inputs)),
            outputs=tuple(map(word, self.outputs)),
        )
