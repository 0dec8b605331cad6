"""The graph of a pipeline: its stages and the queues between them, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import Duration
from mongoq.model.outcomes import Drop, Move
from mongoq.model.settings import DEFAULT, Default

__all__ = ["BATCH", "ITEMS", "LEASE", "Delivery", "Frame", "Graph", "Join", "OnNone", "Source", "Stage", "Trail"]

BATCH = 1_000
LEASE = 30


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """One source as it was declared; values are checked with the graph.

    Attributes:
        name: unique within the pipeline; default the handler's name.
        target: queue that it pushes to.
        handler: generator function; called with the position that was stored last.
        batch: records of one transaction, at most.
        every: pause between two calls; ``None``: it is called once.
        lease: how long the source stays with a process that has died.
    """

    name: Any
    target: Any
    handler: Callable[..., Any]
    batch: int = BATCH
    every: Duration | None = None
    lease: Duration = LEASE


Delivery = Literal["exactly-once", "at-most-once"]
OnNone = Literal["error", "drop"]
Trail = Literal[True, False, "payloads"]
ITEMS = 10_000
"""Default number of items of a frame, at most."""


@dataclass(frozen=True, slots=True)
class Join:
    """Options of a join as they were declared.

    Attributes:
        on: path of the common value in payloads, or paths by queue; ``None``: the first items belong together.
        timeout: how long an item waits for its partners; ``None`` for no limit.
        missing: what happens after the timeout. ``"error"``: the item goes to the error queue; ``"pass"``: the handler
            is called with ``None`` in place of each missing payload.
        late: what happens to a partner that comes after that: ``"error"``; ``"wait"``: it waits like any other;
            ``"drop"``.
    """

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
    """Options of a stage on Spark frames as they were declared.

    Attributes:
        schema: columns, as Spark writes a schema, or a ``StructType``; ``None``: the payload as JSON.
        items: items of one frame, at most.
        partitions: number of tasks that read a frame; ``None``: by the number of items.
    """

    schema: Any = None
    items: Any = ITEMS
    partitions: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One stage as it was declared; values are checked with the graph.

    Attributes:
        name: unique within the pipeline; default the handler's name.
        sources: queues that it takes items from; any of them.
        targets: queues that items may go to; empty for a sink, where items end.
        handler: called with a payload or a list of payloads, and with the job if it takes two arguments.
        model: type of the payloads that it takes, for pydantic; ``None`` for any.
        where: filter on payloads; the handler gets matching items only.
        otherwise: outcome of the other items: ``Drop()`` or ``Move(…)``.
        delivery: ``"exactly-once"``: each item leaves by one fenced update, after the run. ``"at-most-once"``: it
            leaves the queue before the run.
        none: meaning of a returned ``None`` where a payload is due.
        errors: queue of its failures; by default the pipeline's.
        shared: True if other stages take items from the same queues on purpose.
        format: frame format of its batches, ``"pandas"`` or ``"arrow"``; ``None``: the handler takes payloads.
        join: options of a join, whose handler takes one item of each source; ``None``: not a join.
        frame: options of a stage on Spark DataFrames; ``None``: the handler takes payloads.
        options: options of the consumer that were given: ``concurrency``, ``prefetch``, ``prefetch_bytes``, ``lease``,
            ``retry``, ``max_retries``, ``success_on``, ``max_time``, ``on_timeout``, ``batch``, ``probe``.
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
    format: Any = None
    join: Join | None = None
    frame: Frame | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def model_of(self, source: Any) -> Any:
        """Return the type of the payloads of one of its sources, or ``None`` for any."""
        if self.join is None or self.model is None:
            return self.model
        return dict(zip(self.sources, self.model, strict=False)).get(source)

    @property
    def is_sink(self) -> bool:
        """True when items end here."""
        return not self.targets


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
    """

    name: Any
    stages: tuple[Stage, ...]
    errors: Any = None
    inputs: tuple[Any, ...] | None = None
    outputs: tuple[Any, ...] = ()
    trail: Trail = False
    sources: tuple[Source, ...] = ()
    chosen: frozenset[str] | None = None

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
        known = [*(source.name for source in self.sources), *(stage.name for stage in self.stages)]
        strange = sorted(map(repr, chosen.difference(known)))
        if strange or not chosen:
            what = f"pipeline {self.name!r} has no {', '.join(strange)}" if strange else "this names none"
            raise ArgumentInvalid("stages", f"{what}; it has {', '.join(map(repr, known))}")
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
        written = {*self.fed, *(target for stage in self.stages for target in stage.targets)}
        return tuple(queue for queue in sources if queue not in written)
