"""Declaration of stages on Spark DataFrames; part of ``Pipeline``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mongoq.model.arguments import Duration
from mongoq.model.policy import RetryPolicy
from mongoq.model.settings import DEFAULT, Default, given
from mongoq.pipeline.graph.names import names, told
from mongoq.pipeline.graph.stage import ITEMS, Frame

__all__ = ["SparkFrameStages"]

H = TypeVar("H", bound=Callable[..., Any])
Names = str | Sequence[str]


class SparkFrameStages:
    """Mixin of ``Pipeline`` that declares stages on Spark DataFrames."""

    def _add(self, handler: Callable[..., Any], *, name: str | None, **told: Any) -> None:
        raise NotImplementedError

    def frame_stage(
        self,
        source: Names,
        *,
        to: Names = (),
        schema: Any = None,
        items: int = ITEMS,
        partitions: int | None = None,
        name: str | None = None,
        errors: str | Default | None = DEFAULT,
        shared: bool = False,
        lease: Duration | Default | None = DEFAULT,
        retry: RetryPolicy | Default | None = DEFAULT,
        max_retries: int | Default | None = DEFAULT,
    ) -> Callable[[H], H]:
        """Declare a stage from DataFrame to DataFrame, which runs on Spark only; see [frame stages](frame-stages.md).

        ```python
        @pipeline.frame_stage(
            "checked", to="enriched", schema="carrier string, tailnum string, dep_delay int"
        )
        def enrich(flights):
            return flights.join(planes, "tailnum", "left")
        ```

        The function is called on the driver with a frame of one row for each item: ``_id``, ``_attempts``,
        ``_delivery_hash``, and the columns of the schema. It returns a frame whose ``_id`` names the item of each row.
        The item goes on with the other columns of its row as payload, or with its old payload if there are no other
        columns. Several rows of one item are a fork, in one transaction. An item without a row is dropped. The columns
        ``_to``, ``_delay``, ``_retry`` and ``_dead`` ask for other outcomes.

        When the function raises, or a task of its plan fails, the function is called again with parts of the frame, so
        that only the items that cause the failure fail. The returned rows are written beside the checkpoint before the
        first item moves, so a driver that is killed continues with these rows.

        Args:
            source: the queue that the stage takes items from, or several; each queue has frames of its own.
            to: the queue that items go to, or several, of which the column ``_to`` chooses one; by default items end
                here, and the function need not return a frame.
            schema: the columns, such as ``"carrier string, dep_delay int"``, or a ``StructType``; by default
                ``payload`` as JSON text.
            items: items of one frame, at most; up to 500,000.
            partitions: number of tasks that read a frame; by default one for each 5,000 items.
            name: unique within the pipeline; default the name of the function.
            errors: the queue for items that have failed here for good; ``None``: the stage stops. Default the
                pipeline's.
            shared: other stages take items from the same queues on purpose; each of these stages has to set it.
            lease: how long items stay reserved when the driver dies, a ``timedelta`` or seconds; at least one second.
            retry: how long a failed item waits for its next run: ``Fixed``, ``Linear`` or ``Exponential``.
            max_retries: further runs of an item after its first; ``None`` for no limit.
        """
        options = given(lease=lease, retry=retry, max_retries=max_retries)
        frame = Frame(schema, items, partitions)

        sources = told(source, "frame_stage")

        def declare(handler: H) -> H:
            self._add(
                handler,
                name=name,
                sources=sources,
                targets=names(to),
                errors=errors,
                shared=shared,
                frame=frame,
                options=options,
            )
            return handler

        return declare
