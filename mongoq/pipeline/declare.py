"""Declarations of a pipeline's stages: by item, by batch, by frame, and joins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from mongoq.data.arguments import Duration
from mongoq.data.outcomes import Drop, Move, RetryPolicy
from mongoq.data.settings import DEFAULT, Default, only_given
from mongoq.pipeline.graph.graph import (
    DEFAULT_FRAME_BATCH,
    DEFAULT_FRAME_ITEMS,
    PLAIN_FIELDS,
    STAGE_OPTIONS,
    Delivery,
    Frame,
    Join,
    OnNone,
    OutputSequence,
    Stage,
)
from mongoq.pipeline.graph.handlers import decorator_names, handler_name, names
from mongoq.worker.consumer import OnTimeout

H = TypeVar("H", bound=Callable[..., Any])
Names = str | Sequence[str]


class Declarations:
    """Base of ``Pipeline``: the decorators that declare stages."""

    def __init__(self) -> None:
        self._stages: list[Stage] = []

    def _declare(self, arguments: Mapping[str, Any], **fields: Any) -> Callable[[H], H]:
        """Return the decorator that adds a stage of these fields, and of those among the decorator's arguments."""
        name = arguments["name"]
        fields = {field: arguments[field] for field in PLAIN_FIELDS if field in arguments} | fields
        options = only_given(**{option: arguments[option] for option in STAGE_OPTIONS if option in arguments})

        def declare(handler: H) -> H:
            own = handler_name(handler) if name is None else name
            self._stages.append(Stage(name=own, handler=handler, options=options, **fields))
            return handler

        return declare

    def stage(
        self,
        source: Names,
        *,
        to: Names,
        name: str | None = None,
        model: Any = None,
        where: Mapping[str, Any] | None = None,
        otherwise: Drop | Move | None = None,
        delivery: Delivery = "exactly-once",
        none: OnNone = "error",
        sequence: OutputSequence | None = None,
        errors: str | Default | None = DEFAULT,
        shared: bool = False,
        concurrency: int | Default = DEFAULT,
        prefetch: int | Default | None = DEFAULT,
        prefetch_bytes: int | Default | None = DEFAULT,
        lease: Duration | Default | None = DEFAULT,
        retry: RetryPolicy | Default | None = DEFAULT,
        max_retries: int | Default | None = DEFAULT,
        history: Duration | Default | None = DEFAULT,
        success_on: type[BaseException] | Sequence[type[BaseException]] | Default = DEFAULT,
        max_time: Duration | Default | None = DEFAULT,
        on_timeout: OnTimeout | Default = DEFAULT,
        batch: int | Default | None = DEFAULT,
        probe: bool | Default = DEFAULT,
        max_running: int | Default | None = DEFAULT,
        rate: str | Default | None = DEFAULT,
        burst: int | Default | None = DEFAULT,
        rate_key: str | Callable[[Any], Any] | Default | None = DEFAULT,
    ) -> Callable[[H], H]:
        """Declare a stage, whose handler is the decorated function; the function is returned unchanged.

        The handler is called with the payload, or with the payload and the job, and returns the new payload, or an
        outcome: ``Move`` to one of its targets, ``Drop``, ``Retry``, ``Dead``.

        Args:
            source: the queue that the stage takes items from, or several: it takes items from any of them.
            to: the queue that items go to, or several, of which the handler chooses one with ``Move``.
            name: unique within the pipeline; default the name of the handler.
            model: the type of the payloads, for pydantic; by default the handler gets payloads as they are stored.
            where: a filter on payloads, such as ``{"cancelled": False}``; the handler gets matching items only.
            otherwise: outcome of the other items: ``Drop()``, or ``Move`` to another queue, payload unchanged.
            delivery: ``"exactly-once"``: an item leaves by one fenced update, after the handler has run.
                ``"at-most-once"``: it leaves before the run.
            none: meaning of a returned ``None``: ``"error"``, or ``"drop"``.
            sequence: sequence that an output enters in its queue: a function, called with the payload of the output,
                that returns a text such as ``"customer-17"``, or ``None`` for none. ``"keep"``: the sequence of the
                input, if it has one. By default outputs wait for no other item, whatever the sequence of the input.
                ``Move(sequence=)`` of the handler goes before it. Items that ``otherwise`` settles enter none.
            errors: the queue for items that have failed here for good; ``None``: the stage stops. Default the
                pipeline's.
            shared: other stages take items from the same queues on purpose; each of these stages has to set it.
            concurrency: runs at the same time for each queue, at most.
            prefetch: further items of each queue that are reserved and wait for a run, at most.
            prefetch_bytes: the stage reserves no more items of a queue while the items it holds have this many bytes;
                default 64 MiB, ``None`` for no limit.
            lease: how long an item stays reserved when the process dies, a ``timedelta`` or seconds.
            retry: how long a failed item waits for its next run: ``Fixed``, ``Linear`` or ``Exponential``.
            max_retries: further runs of an item after its first; ``None`` for no limit.
            history: how long the queues keep items that end here, a ``timedelta`` or seconds; ``None`` deletes them. It
                is a setting of the queues, stored with each unless that has one already.
            success_on: exceptions that count as success.
            max_time: the stack of a handler that runs longer is logged, default after five minutes; a ``timedelta`` or
                seconds.
            on_timeout: what happens to its items then, as for consumers: ``"log"``, ``"release"`` or ``"cancel"``.
            batch: the handler takes a list of up to this many payloads, and returns a list with an entry for each.
            probe: while different items fail, with no success between, one item at a time is tried.
            max_running: items of the queue that run at a time, over the runs of all processes. The limits are settings
                of the queue, as for consumers: the stage takes items from one queue then. See [limits](limits.md).
            rate: items that may start in a time, such as ``"100/m"``, over the runs of all processes.
            burst: items that may start at once; default what the rate allows in a quarter of a second, at least one.
            rate_key: each key has the rate to itself: the dotted name of a field, or a function of the payload.
        """
        # An empty tuple would make it a sink, so it stays a fault.
        return self._declare(locals(), sources=names(source), targets=names(to) or (to,))

    def sink(
        self,
        source: Names,
        *,
        name: str | None = None,
        model: Any = None,
        where: Mapping[str, Any] | None = None,
        otherwise: Drop | Move | None = None,
        delivery: Delivery = "exactly-once",
        errors: str | Default | None = DEFAULT,
        shared: bool = False,
        concurrency: int | Default = DEFAULT,
        prefetch: int | Default | None = DEFAULT,
        prefetch_bytes: int | Default | None = DEFAULT,
        lease: Duration | Default | None = DEFAULT,
        retry: RetryPolicy | Default | None = DEFAULT,
        max_retries: int | Default | None = DEFAULT,
        history: Duration | Default | None = DEFAULT,
        success_on: type[BaseException] | Sequence[type[BaseException]] | Default = DEFAULT,
        max_time: Duration | Default | None = DEFAULT,
        on_timeout: OnTimeout | Default = DEFAULT,
        batch: int | Default | None = DEFAULT,
        probe: bool | Default = DEFAULT,
        max_running: int | Default | None = DEFAULT,
        rate: str | Default | None = DEFAULT,
        burst: int | Default | None = DEFAULT,
        rate_key: str | Callable[[Any], Any] | Default | None = DEFAULT,
    ) -> Callable[[H], H]:
        """Declare a stage where items end: any returned value means success, and the item is done.

        The arguments are those of ``stage``, without ``to`` and ``none``.
        """
        return self._declare(locals(), sources=decorator_names(source, "sink"), targets=())

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
        sequence: OutputSequence | None = None,
        errors: str | Default | None = DEFAULT,
        concurrency: int | Default = DEFAULT,
        prefetch: int | Default | None = DEFAULT,
        prefetch_bytes: int | Default | None = DEFAULT,
        lease: Duration | Default | None = DEFAULT,
        retry: RetryPolicy | Default | None = DEFAULT,
        max_retries: int | Default | None = DEFAULT,
        history: Duration | Default | None = DEFAULT,
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

        The arguments are those of ``stage``, without ``where``, ``otherwise``, ``shared`` and limits, and:

        - ``sources``: the queues, two or more; no other stage may take items from them.
        - ``on``: path of the common value in the payloads, such as ``"order.id"``; a mapping from queue to path where
          the paths differ. ``None``: the first items of all queues belong together.
        - ``to``: as for ``stage``; by default items end here.
        - ``timeout``: how long an item waits for its partners, a ``timedelta`` or seconds; ``None`` for no limit.
        - ``missing``: what happens after the timeout. ``"error"``: the item goes to the error queue. ``"pass"``: the
          handler is called with ``None`` in place of each missing payload.
        - ``late``: what happens to a partner that comes within seven days after the timeout, when no other item waits
          for it. ``"error"``: it goes to the error queue. ``"wait"``: it waits for another partner. ``"drop"``.
        - ``model``: the types of the payloads, in the order of the queues.
        - ``sequence``: a function of the payload of an output; a join cannot keep a sequence, since its inputs have
          several.
        - ``history``: how long the queues keep items that end here: inputs, and pairs.
        """
        own = Join(on, timeout, missing, late)
        return self._declare(locals(), sources=names(sources), targets=names(to), join=own)

    def batch_stage(
        self,
        source: Names,
        *,
        format: Literal["pandas", "arrow"],
        to: Names = (),
        batch: int = DEFAULT_FRAME_BATCH,
        name: str | None = None,
        model: Any = None,
        where: Mapping[str, Any] | None = None,
        otherwise: Drop | Move | None = None,
        none: OnNone = "error",
        sequence: OutputSequence | None = None,
        errors: str | Default | None = DEFAULT,
        shared: bool = False,
        concurrency: int | Default = DEFAULT,
        prefetch: int | Default | None = DEFAULT,
        prefetch_bytes: int | Default | None = DEFAULT,
        lease: Duration | Default | None = DEFAULT,
        retry: RetryPolicy | Default | None = DEFAULT,
        max_retries: int | Default | None = DEFAULT,
        history: Duration | Default | None = DEFAULT,
        success_on: type[BaseException] | Sequence[type[BaseException]] | Default = DEFAULT,
        max_time: Duration | Default | None = DEFAULT,
        on_timeout: OnTimeout | Default = DEFAULT,
        probe: bool | Default = DEFAULT,
        max_running: int | Default | None = DEFAULT,
        rate: str | Default | None = DEFAULT,
        burst: int | Default | None = DEFAULT,
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

        The arguments are those of ``stage``, without ``delivery`` and ``rate_key``, and:

        - ``source``: the queue that the stage takes items from, or several; a frame has items of one queue.
        - ``format``: ``"pandas"``: a ``pandas.DataFrame``, which needs the extra ``pandas``. ``"arrow"``: a
          ``pyarrow.Table``, which needs the extra ``arrow``.
        - ``to``: the queue that items go to, or several, of which ``_to`` chooses one; by default items end here.
        - ``batch``: items of one frame, at most.
        - ``model``: the type of the payloads, for pydantic. A payload that does not fit goes to the error queue; the
          columns hold what the model makes of the others, as it is stored.
        - ``sequence``: as for ``stage``; a function gets the payload that is made of a row.
        - ``max_running``: as for ``stage``; a frame has no more items than the limits allow.
        """
        return self._declare(locals(), sources=names(source), targets=names(to))

    def frame_stage(
        self,
        source: Names,
        *,
        to: Names = (),
        schema: Any = None,
        items: int = DEFAULT_FRAME_ITEMS,
        partitions: int | None = None,
        name: str | None = None,
        sequence: OutputSequence | None = None,
        errors: str | Default | None = DEFAULT,
        shared: bool = False,
        lease: Duration | Default | None = DEFAULT,
        retry: RetryPolicy | Default | None = DEFAULT,
        max_retries: int | Default | None = DEFAULT,
        history: Duration | Default | None = DEFAULT,
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
        ``_to``, ``_delay``, ``_sequence``, ``_retry`` and ``_dead`` ask for other outcomes.

        When the function raises, or a task of its plan fails, the function is called again with parts of the frame, so
        that only the items that cause the failure fail. The returned rows are written beside the checkpoint before the
        first item moves, so a driver that is killed continues with these rows.

        The further arguments are those of ``stage``; the first ones are:

        - ``source``: the queue that the stage takes items from, or several; each queue has frames of its own.
        - ``to``: the queue that items go to, or several, of which the column ``_to`` chooses one; by default items end
          here, and the function need not return a frame.
        - ``schema``: the columns, such as ``"carrier string, dep_delay int"``, or a ``StructType``; by default
          ``payload`` as JSON text.
        - ``items``: items of one frame, at most; up to 500,000.
        - ``partitions``: number of tasks that read a frame; by default one for each 5,000 items.
        - ``sequence``: as for ``stage``. A function gets the payload that is made of a row, as it is stored, and runs
          in Spark's tasks. The column ``_sequence`` goes before it. With ``"keep"`` the items of a sequence go on in
          their order; outputs of several items of one frame that enter one sequence have none.
        - ``lease``: how long items stay reserved when the driver dies, a ``timedelta`` or seconds; at least one second.
        """
        own = Frame(schema, items, partitions)
        return self._declare(locals(), sources=decorator_names(source, "frame_stage"), targets=names(to), frame=own)
