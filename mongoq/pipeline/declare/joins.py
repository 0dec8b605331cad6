"""The declaration of joins; part of ``Pipeline``."""

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
    """The side of a pipeline that declares joins."""

    def _add(self, handler: Callable[..., Any], *, name: str | None, **told: Any) -> None:
        raise NotImplementedError

    @property
    def graph(self) -> Graph:
        """All that it was told."""
        raise NotImplementedError

    def waiting(self, broker: Broker) -> Iterator[Waiting]:
        """Iterate over the items that wait for their partners in joins, join by join, those given up soonest first.

        In pages by key (``find``), as ``queue.history`` does; any process may ask, whether the pipeline runs or not.
        """
        for stage, queue in queues_of(self.graph):
            for item in broker.queue(queue).history(state=None):
                yield waiting(stage, item)

    async def waiting_async(self, broker: AsyncBroker) -> AsyncIterator[Waiting]:
        """Do as ``waiting``, with asyncio: ``async for one in pipeline.waiting_async(broker)``."""
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
        """Declare a stage that joins: its handler takes one item of each of its queues, which belong together.

        ```python
        @pipeline.join(
            ["orders", "payments"], on="order_id", to="settled", timeout=timedelta(days=3)
        )
        def settle(order, payment): ...
        ```

        The handler is called with the payloads, in the order of the queues, and with the job, if it takes one argument
        more; it returns what the handler of a ``stage`` does. An item waits until its partners are there. Then they
        become one item, with an id of its own, in the transaction that takes them out; that item is run, retried and
        buried like any other, so that every attempt takes the same ones, and has the same ``job.delivery_hash``.

        Items that have the same value belong together in the order in which they come. One without a value, or with
        one that is a document, a list or null, goes to the error queue.

        Joins need a server with transactions: a replica set, of one node at least.

        Args:
            sources: the queues, two or more; no other stage may take items from them.
            on: where the value that they have in common stands in payloads, such as ``"order.id"``; a mapping where
                that differs by queue. ``None``: the first of each belong together.
            to: the queue that items go to, or several, which the handler chooses from with ``Move``; by default they
                end here.
            timeout: how long an item waits for its partners, a ``timedelta`` or seconds; ``None`` for ever.
            missing: what becomes of it then: ``"error"``: it goes to the error queue. ``"pass"``: the handler is called
                with ``None`` in place of what has not come.
            late: what becomes of a partner that comes within seven days after that, where nobody else waits for it:
                ``"error"``: it goes to the error queue. ``"wait"``: it waits for another one. ``"drop"``.
            name: as for ``stage``, as are all the others.
            model: the types of the payloads, in the order of the queues.
            none: what a returned ``None`` means, where there is a ``to``.
            errors: the queue of failures.
            concurrency: how many runs at a time.
            prefetch: how many further items are reserved and wait for a run.
            prefetch_bytes: nothing more is reserved for a queue while what is held of it has so many bytes; default 64
                MiB, ``None`` for no limit.
            lease: how long an item stays reserved when the process dies.
            retry: how long a failed item waits for its next run.
            max_retries: how many further runs an item gets.
            success_on: exceptions that count as success.
            max_time: the stack of a handler that runs longer is logged.
            on_timeout: what becomes of its items then, as for consumers: ``"log"``, ``"release"`` or ``"cancel"``.
            batch: the handler takes one list, of the payloads of up to so many pairs, ``[(order, payment), …]``, and
                the job, if it takes two arguments; it returns a list with an entry for each.
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
