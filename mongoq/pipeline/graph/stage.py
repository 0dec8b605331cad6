"""A stage: a pure description of what takes items from queues, and where they go. How it runs, an engine decides."""

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
"""Items of a frame, at most, unless the stage says so."""


@dataclass(frozen=True, slots=True)
class Join:
    """How a stage joins its items, as it was told.

    Attributes:
        on: where the common value stands in payloads, by queue; ``None``: the first of each belong together.
        timeout: how long an item waits for its partners; ``None`` for ever.
        missing: what becomes of it then: ``"error"``: it goes to the error queue; ``"pass"``: the handler is called
            with ``None`` in place of what has not come.
        late: what becomes of a partner that comes after that: ``"error"``; ``"wait"``: it waits like any other;
            ``"drop"``.
    """

    on: Any
    timeout: Any = None
    missing: Any = "error"
    late: Any = "error"

    def path(self, source: str) -> str | None:
        """Return where the value stands in the payloads of a queue."""
        path = self.on[source] if isinstance(self.on, Mapping) else self.on
        return None if path is None else str(path)


@dataclass(frozen=True, slots=True)
class Frame:
    """How a stage takes its items as frames, as it was told.

    Attributes:
        schema: the columns, as Spark writes a schema, or a ``StructType``; ``None``: the payload as JSON.
        items: how many items are in a frame at most.
        partitions: how many tasks read a frame; ``None`` to go by its items.
    """

    schema: Any = None
    items: Any = ITEMS
    partitions: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One stage, as it was told; nothing is checked before the graph is.

    Attributes:
        name: unique within the pipeline; the handler's unless told.
        sources: the queues that it takes items from; any of them.
        targets: the queues that items may go to; none makes it a sink, whose items end there.
        handler: called with a payload, or a list of them; and the job, when it takes two arguments.
        model: the type of the payloads that it takes, for pydantic; ``None`` for any.
        where: a filter on payloads; other items are not given to the handler.
        otherwise: what becomes of those: ``Drop()`` or ``Move(…)``.
        delivery: ``"exactly-once"``: each item leaves by one fenced update, after the run. ``"at-most-once"``: it
            leaves the queue before the run.
        none: what a returned ``None`` means where a payload is due.
        errors: the queue of its failures; by default the pipeline's.
        shared: it knows that other stages take items from the same queues.
        format: its handler takes batches as frames, ``"pandas"`` or ``"arrow"``; ``None``: it takes payloads.
        join: its handler takes one item of each of its sources, which belong together; ``None``: it takes any.
        frame: its handler takes DataFrames, and runs on Spark; ``None``: it takes payloads.
        options: of the consumer, those that were given: ``concurrency``, ``prefetch``, ``prefetch_bytes``, ``lease``,
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
        """Say whether items end here."""
        return not self.targets
