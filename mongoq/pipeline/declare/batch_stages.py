"""Declaration of stages on pandas or Arrow frames; part of ``Pipeline``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from mongoq.model.arguments import Duration
from mongoq.model.outcomes import Drop, Move
from mongoq.model.policy import RetryPolicy
from mongoq.model.settings import DEFAULT, Default, given
from mongoq.pipeline.graph.names import names
from mongoq.pipeline.graph.stage import OnNone
from mongoq.worker.consumer import OnTimeout

__all__ = ["FRAME", "BatchStages"]

H = TypeVar("H", bound=Callable[..., Any])
Names = str | Sequence[str]

FRAME = 1_000
"""Default of ``batch``: items of one frame, at most."""


class BatchStages:
    """Mixin of ``Pipeline`` that declares stages on pandas or Arrow frames."""

    def _add(self, handler: Callable[..., Any], *, name: str | None, **told: Any) -> None:
        raise NotImplementedError

    def batch_stage(
        self,
        source: Names,
        *,
        format: Literal["pandas", "arrow"],
        to: Names = (),
        batch: int = FRAME,
        name: str | None = None,
        model: Any = None,
        where: Mapping[str, Any] | None = None,
        otherwise: Drop | Move | None = None,
        none: OnNone = "error",
        errors: str | Default | None = DEFAULT,
        shared: bool = False,
        concurrency: int | Default = DEFAULT,
        prefetch: int | Default | None = DEFAULT,
        prefetch_bytes: int | Default | None = DEFAULT,
        lease: Duration | Default | None = DEFAULT,
        retry: RetryPolicy | Default | None = DEFAULT,
        max_retries: int | Default | None = DEFAULT,
        success_on: type[BaseException] | Sequence[type[BaseException]] | Default = DEFAULT,
        max_time: Duration | Default | None = DEFAULT,
        on_timeout: OnTimeout | Default = DEFAULT,
        probe: bool | Default = DEFAULT,
    ) -> Callable[[H], H]:
        """Declare a stage from frame to frame: its handler takes a batch of items as a frame and returns a frame.

        ```python
        @pipeline.batch_stage("checked", to="enriched", format="pandas")
        def enrich(flights: pandas.DataFrame) -> pandas.DataFrame:
            return flights.assign(late=flights["delay"] > 15)
        ```

        The handler is called with a frame, or with the frame and the job. The frame has one row for each item: its
        ``_id``, ``_delivery_hash`` and ``_attempts``, and a column for each field of the payloads. Payloads that are
        not documents are in the column ``payload``. A field ``_x`` has the column ``__x``.

        In the returned frame, ``_id`` names the item of a row, and the other columns are the item's new payload.
        Without other columns the item keeps its payload. Several rows of one item are a ``Fork``; an item without a row
        is dropped. ``_to`` names the target; ``_retry`` (an error) and ``_dead`` (a reason) mean ``Retry`` and ``Dead``
        where they are not null. The handler may also return a list with an entry for each row, like the handler of a
        ``stage`` with ``batch=``, or ``None``.

        A fault in the rows of one item fails that item; a fault that makes the whole frame ambiguous fails the batch.
        When the process dies, the batch runs again when its leases end, item by item; no item of it has moved on
        before.

        Args:
            source: the queue that the stage takes items from, or several; a frame has items of one queue.
            format: ``"pandas"``: a ``pandas.DataFrame``, which needs the extra ``pandas``. ``"arrow"``: a
                ``pyarrow.Table``, which needs the extra ``arrow``.
            to: the queue that items go to, or several, of which ``_to`` chooses one; by default items end here.
            batch: items of one frame, at most.
            name: as for ``stage``, like all further arguments.
            model: the type of the payloads, for pydantic. A payload that does not fit goes to the error queue; the
                columns hold what the model makes of the others, as it is stored.
            where: a filter on payloads.
            otherwise: outcome of items that do not match the filter.
            none: meaning of a returned ``None``, where there is a ``to``.
            errors: the queue of failures.
            shared: other stages take items from the same queues on purpose.
            concurrency: runs at the same time, for each queue.
            prefetch: further items of each queue that are reserved and wait for a run.
            prefetch_bytes: the stage reserves no more items of a queue while the items it holds have this many bytes;
                default 64 MiB, ``None`` for no limit.
            lease: how long an item stays reserved when the process dies.
            retry: how long a failed item waits for its next run.
            max_retries: further runs of an item after its first.
            success_on: exceptions that count as success.
            max_time: the stack of a handler that runs longer is logged.
            on_timeout: what happens to its items then, as for consumers: ``"log"``, ``"release"`` or ``"cancel"``.
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

        def declare(handler: H) -> H:
            self._add(
                handler,
                name=name,
                sources=names(source),
                targets=names(to),
                model=model,
                where=where,
                otherwise=otherwise,
                none=none,
                errors=errors,
                shared=shared,
                format=format,
                options=options,
            )
            return handler

        return declare
