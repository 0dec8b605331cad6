"""The declaration of stages that take frames; part of ``Pipeline``."""

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
    """The side of a pipeline that declares stages on frames."""

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

        The function is called on the driver with a frame that has a row for each item: ``_id``, ``_attempts``,
        ``_delivery_hash``, and the columns of the schema. It returns a frame whose ``_id`` says of which item a row is
        made: the item goes on with the row's other columns as its payload, or with the payload that it had where there
        are none. Several rows of one item are a fork, in one transaction. An item without a row is dropped. Columns
        ``_to``, ``_delay``, ``_retry`` and ``_dead`` say what else is to become of it.

        When the function raises, or a task of its plan fails, it is called again with parts of the frame, so that only
        the items fail that are the cause. What it returned is written beside the checkpoint before the first item
        moves, so that a driver that is killed goes on with that.

        Args:
            source: the queue that it takes items from, or several: each has frames of its own.
            to: the queue that items go to, or several, which the column ``_to`` chooses from; by default they end
                here, and what is returned need not be a frame.
            schema: the columns, such as ``"carrier string, dep_delay int"``, or a ``StructType``; by default
                ``payload`` as JSON text.
            items: how many items a frame has at most, up to 500,000.
            partitions: how many tasks read a frame; by default one for each 5,000 items.
            name: unique within the pipeline; default the name of the function.
            errors: the queue that takes what has failed here for good; ``None``: the stage stops. Default the
                pipeline's.
            shared: other stages take items from the same queues, and that is meant; each of them has to say so.
            lease: how long items stay reserved when the driver dies, a ``timedelta`` or seconds, one at least.
            retry: how long a failed item waits for its next run: ``Fixed``, ``Linear`` or ``Exponential``.
            max_retries: how many further runs an item gets after its first; ``None`` for no limit.
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
