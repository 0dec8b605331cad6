"""Declaration of joins; part of ``Pipeline``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from mongoq.aio import AsyncBroker
from mongoq.model.arguments import Duration
from mongoq.model.policy import RetryPolicy
from mongoq.model.settings import DEFAULT, Default, given
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.graph.join_waiters import Waiting, queues_of, waiting
from mongoq.pipeline.graph.names import names
from mongoq.pipeline.graph.stage import Join, OnNone
from mongoq.sync import Broker
from mongoq.worker.consumer import OnTimeout

__all__ = ["Joins"]

H = TypeVar("H", bound=Callable[..., Any])
Names = str | Sequence[str]


class Joins:
    """Mixin of ``Pipeline`` that declares joins."""

    def _add(self, handler: Callable[..., Any], *, name: str | None, **told: Any) -> None:
        raise NotImplementedError

    @property
    def graph(self) -> Graph:
        """The declared graph."""
        raise NotImplementedError

    def waiting(self, broker: Broker) -> Iterator[Waiting]:
        """Iterate over the items that wait for their partners, join by join, earliest timeout first.

        The items are read in pages by key (``find``), like ``queue.history``. Any process may call this, also while the
        pipeline does not run.
        """
        for stage, queue in queues_of(self.graph):
            for item in broker.queue(queue).history(state=None):
                yield waiting(stage, item)

    async def waiting_async(self, broker: AsyncBroker) -> AsyncIterator[Waiting]:
        """Iterate as ``waiting`` does, with asyncio: ``async for one in pipeline.waiting_async(broker)``."""
        for stage, queue in queues_of(self.graph):
            async for item in broker.queue(queue).history(state=None):
                yield waiting(stage, item)

    def join(
        self,
        sources: Sequence[str],
        *,
        on: str | Mapping[str, str] | None,
        to: Names = (),
        timeout: Duration | None = None,
        missing: Literal["error", "pass"] = "error",
        late: Literal["error", "wait", "drop"] = "error",
        name: str | None = None,
        model: Sequence[Any] | None = None,
        none: OnNone = "error",
        errors: str | Default | None = DEFAULT,
        concurrency: int | Default = DEFAULT,
        prefetch: int | Default | None = DEFAULT,
        prefetch_bytes: int | Default | None = DEFAULT,
        lease: Duration | Default | None = DEFAULT,
        retry: RetryPolicy | Default | None = DEFAULT,
        max_retries: int | Default | None = DEFAULT,
        success_on: type[BaseException] | Sequence[type[BaseException]] | Default = DEFAULT,
        max_time: Duration | Default | None = DEFAULT,
        on_timeout: OnTimeout | Default = DEFAULT,
        batch: int | Default | None = DEFAULT,
        probe: bool | Default = DEFAULT,
    ) -> Callable[[H], H]:
        """Declare a join: its handler takes one item of each queue, and these items belong together.

        ```python
        @pipeline.join(
            ["orders", "payments"], on="order_id", to="settled", timeout=timedelta(days=3)
        )
        def settle(order, payment): ...
        ```

        The handler is called with the payloads in the order of the queues. It may take the job as one more argument. It
        returns the same as the handler of a ``stage``. An item waits until its partners have come. Then one transaction
        takes them out and puts in one item with an id of its own. That item is run, retried and buried like any other,
        so every attempt has the same payloads and the same ``job.delivery_hash``.

        Items with the same value are matched in the order in which they come. An item goes to the error queue when its
        value is missing, null, a document or a list.

        Joins need a server with transactions: a replica set of at least one node.

        Args:
            sources: the queues, two or more; no other stage may take items from them.
            on: path of the common value in the payloads, such as ``"order.id"``; a mapping from queue to path where the
                paths differ. ``None``: the first items of all queues belong together.
            to: the queue that items go to, or several, of which the handler chooses one with ``Move``; by default items
                end here.
            timeout: how long an item waits for its partners, a ``timedelta`` or seconds; ``None`` for no limit.
            missing: what happens after the timeout. ``"error"``: the item goes to the error queue. ``"pass"``: the
                handler is called with ``None`` in place of each missing payload.
            late: what happens to a partner that comes within seven days after the timeout, when no other item waits for
                it. ``"error"``: it goes to the error queue. ``"wait"``: it waits for another partner. ``"drop"``.
            name: as for ``stage``, like all further arguments.
            model: the types of the payloads, in the order of the queues.
            none: meaning of a returned ``None``, where there is a ``to``.
            errors: the queue of failures.
            concurrency: runs at the same time.
            prefetch: further items that are reserved and wait for a run.
            prefetch_bytes: the stage reserves no more items of a queue while the items it holds have this many bytes;
                default 64 MiB, ``None`` for no limit.
            lease: how long an item stays reserved when the process dies.
            retry: how long a failed item waits for its next run.
            max_retries: further runs of an item after its first.
            success_on: exceptions that count as success.
            max_time: the stack of a handler that runs longer is logged.
            on_timeout: what happens to its items then, as for consumers: ``"log"``, ``"release"`` or ``"cancel"``.
            batch: the handler takes one list with the payloads of up to this many pairs, ``[(order, payment), …]``, and
                the job if it takes two arguments; it returns a list with an entry for each pair.
            probe: while the handler keeps failing, one item at a time is tried.
        """
        options = given(
            concurrency=concurrency,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            lease=lease,
            retry=retry,
            max_retries=max_retries,
            success_on=success_on,
            max_time=max_time,
            on_timeout=on_timeout,
            batch=batch,
            probe=probe,
        )
        how = Join(on, timeout, missing, late)

        def declare(handler: H) -> H:
            self._add(
                handler,
                name=name,
                sources=names(sources),
                targets=names(to),
                model=model,
                none=none,
                errors=errors,
                join=how,
                options=options,
            )
            return handler

        return declare
