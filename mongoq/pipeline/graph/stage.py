"""A stage as plain data: its queues, its handler and its options. An engine decides how it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mongoq.model.outcomes import Outcome
from mongoq.model.settings import DEFAULT, Default

__all__ = ["ITEMS", "Delivery", "Frame", "Join", "OnNone", "Stage", "Trail"]

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
    otherwise: Outcome | None = None
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
