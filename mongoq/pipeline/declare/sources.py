"""Declaration of sources; part of ``Pipeline``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mongoq.model.arguments import Duration
from mongoq.pipeline.graph.names import handler_name
from mongoq.pipeline.graph.source import BATCH, LEASE, Source

__all__ = ["Sources"]

H = TypeVar("H", bound=Callable[..., Any])


class Sources:
    """Mixin of ``Pipeline`` that declares sources."""

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
        """Declare a source: a generator function that yields ``Record``; the function is returned unchanged.

        The run calls it with the stored position of the last record, ``None`` the first time. Records are pushed in
        batches; one transaction holds a batch and the position of its last record (``update``, ``insert``), so a
        replica set is needed. When a process is killed, its committed batches stay, and the next process continues
        behind them: no record is lost or pushed twice. One process at a time runs the source; others wait until it or
        its lease ends.

        The source stops when it raises an error or yields a record that cannot be pushed; earlier records are pushed.

        Args:
            to: the queue that items go to. If it is a topic, copies go to all queues bound to it. The payloads have to
                fit the model of the stages that take items from it, if these stages have one common model.
            name: unique within the pipeline; default the name of the function. The position is stored under this name.
            batch: records of one transaction, at most 10,000. A batch is smaller when records come slowly or are more
                than 8 MiB.
            every: pause between the end of a call and the next call, which gets the position stored by then; a
                ``timedelta`` or seconds. ``None``: one call in this run. A ``drain`` calls it once.
            lease: how long the source stays with a process that has died, a ``timedelta`` or seconds. The lease is
                extended while the source runs.
        """

        def declare(handler: H) -> H:
            own = handler_name(handler) if name is None else name
            self._sources.append(Source(own, to, handler, batch, every, lease))
            return handler

        return declare
