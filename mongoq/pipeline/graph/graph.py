"""The graph of a pipeline: its stages and the queues between them, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.model.settings import Default
from mongoq.pipeline.graph.source import Source
from mongoq.pipeline.graph.stage import Stage, Trail

__all__ = ["Graph"]


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
