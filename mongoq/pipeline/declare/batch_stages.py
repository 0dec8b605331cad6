"""The declaration of stages on frames; part of ``Pipeline``."""

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
"""How many items a frame is made of at most, where nothing else is said."""


class BatchStages:
    """The side of a pipeline that declares stages on frames."""

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
        """Declare a stage whose handler takes a batch of items as a frame, and returns one.

        ```python
        @pipeline.batch_stage("checked", to="enriched", format="pandas")
        def enrich(flights: pandas.DataFrame) -> pandas.DataFrame:
            return flights.assign(late=flights["delay"] > 15)
        ```

        The handler is called with a frame, or with the frame and the job. It has a row for each item: its ``_id``,
        ``_delivery_hash`` and ``_attempts``, and a column for each field of the payloads, or ``payload`` where they are
        no documents. A field ``_x`` has the column ``__x``.

        In the frame that it returns, ``_id`` says of which item a row is made, and the other columns are the payload
        that goes on; without any the item keeps its own. Several rows of an item are a ``Fork``, and an item without a
        row is dropped. ``_to`` names the target, ``_retry`` (an error) and ``_dead`` (a reason) are ``Retry`` and
        ``Dead``, where they are not null. It may also return a list with an entry for each row, as the handler of a
        ``stage`` with ``batch=`` does, or ``None``.

        What is wrong with the rows of one item fails that item; what leaves open what was meant fails the batch. A
        batch whose process dies is run again when its leases end, item by item, before anything of it has gone on.

        Args:
            source: the queue that it takes items from, or several; a frame is made of items of one of them.
            format: ``"pandas"``: a ``pandas.DataFrame``, which needs the extra ``pandas``. ``"arrow"``: a
                ``pyarrow.Table``, which needs the extra ``arrow``.
            to: the queue that items go to, or several, which ``_to`` chooses from; by default they end here.
            batch: how many items a frame is made of, at most.
            name: as for ``stage``, as are all the others.
            model: the type of the payloads, for pydantic: what does not fit goes to the error queue, and the columns
                are those of what the model makes of the rest, as it is stored.
            where: a filter on payloads.
            otherwise: what becomes of those that do not fit it.
            none: what a returned ``None`` means, where there is a ``to``.
            errors: the queue of failures.
            shared: other stages take items from the same queues, and that is meant.
            concurrency: how many runs at a time for each of its queues.
            prefetch: how many further items of each are reserved and wait for a run.
            prefetch_bytes: nothing more is reserved for a queue while what is held of it has so many bytes; default 64
                MiB, ``None`` for no limit.
            lease: how long an item stays reserved when the process dies.
            retry: how long a failed item waits for its next run.
            max_retries: how many further runs an item gets.
            success_on: exceptions that count as success.
            max_time: the stack of a handler that runs longer is logged.
            on_timeout: what becomes of its items then, as for consumers: ``"log"``, ``"release"`` or ``"cancel"``.
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
