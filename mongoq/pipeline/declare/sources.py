"""How sources are declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mongoq.model.arguments import Duration
from mongoq.pipeline.graph.names import handler_name
from mongoq.pipeline.graph.source import BATCH, LEASE, Source

__all__ = ["Sources"]

H = TypeVar("H", bound=Callable[..., Any])


class Sources:
    """The side of a pipeline that items come in by; part of ``Pipeline``."""

    _sources: list[Source]

    def source(
        self,
        *,
        to: str,
        name: str | None = None,
        batch: int = BATCH,
        every: Duration | None = None,
        lease: Duration = LEASE,
    ) -> Callable[[H], H]:
        """Declare a source, a generator function that yields ``Record``; it is returned as it is.

        It is called with the position of the last record that was stored, ``None`` the first time. Records are pushed
        in batches, each in one transaction with the position of its last one (``update``, ``insert``), so a replica set
        is needed. A process that is killed leaves what was committed; the next one goes on behind that, and nothing is
        lost or comes twice. One process at a time runs the source; others wait until it has ended, or its lease has.

        An error that it raises, and a record that cannot be pushed, stop the source; what came before is pushed.

        Args:
            to: the queue that items go to; copies go to all queues bound to it, when it is a topic. Their payloads have
                to fit the model of the stages that take items from it, if they have one and the same.
            name: unique within the pipeline; default the name of the function. The position is stored under it.
            batch: how many records are pushed in one transaction, at most 10,000. Fewer are when they come slowly, or
                are more than 8 MiB.
            every: how long after its end it is called again, with the position by then, a ``timedelta`` or seconds;
                ``None`` for not again in this run. A ``drain`` calls it once.
            lease: how long the source stays with a process that has died, a ``timedelta`` or seconds. It is extended
                while the source is run.
        """

        def declare(handler: H) -> H:
            own = handler_name(handler) if name is None else name
            self._sources.append(Source(own, to, handler, batch, every, lease))
            return handler

        return declare
