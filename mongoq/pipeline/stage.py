"""A stage: a pure description of what takes items from queues, and where they go. How it runs, an engine decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mongoq.model.outcomes import Outcome
from mongoq.model.settings import DEFAULT, Default

__all__ = ["Delivery", "OnNone", "Stage", "Trail"]

Delivery = Literal["exactly-once", "at-most-once"]
OnNone = Literal["error", "drop"]
Trail = Literal[True, False, "payloads"]


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
        options: of the consumer, those that were given: ``concurrency``, ``prefetch``, ``lease``, ``retry``,
            ``max_retries``, ``success_on``, ``max_time``, ``batch``, ``probe``.
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
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_sink(self) -> bool:
        """Say whether items end here."""
        return not self.targets
