"""The pipeline: declares stages and checks, describes and compares them before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, TypeVar

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import Duration
from mongoq.model.outcomes import Drop, Move
from mongoq.model.policy import RetryPolicy
from mongoq.model.settings import DEFAULT, Default, only_given
from mongoq.pipeline.graph.comparison import Difference, differences
from mongoq.pipeline.graph.graph import Delivery, Graph, OnNone, Source, Stage, Trail
from mongoq.pipeline.graph.handlers import decorator_names, names, quote_if_odd
from mongoq.pipeline.recipe.recipe import graph_of
from mongoq.pipeline.render import description, mermaid
from mongoq.pipeline.start import Starting
from mongoq.worker.consumer import OnTimeout

__all__ = ["Pipeline"]

H = TypeVar("H", bound=Callable[..., Any])
Names = str | Sequence[str]


class Pipeline(Starting):
    """Stages, each of which takes items from queues and sends them on to others, and sources, which make items.

    ```python
    pipeline = mongoq.Pipeline("flights", errors="flights.errors")


    @pipeline.stage("raw", to="checked", model=Flight)
    def check(flight): ...


    @pipeline.sink("checked")
    def load(flight): ...
    ```

    Stages may be declared in any order, and items may go in loops. The declarations are not checked one by one:
    ``check`` reports all faults at once. A pipeline is a description, without any state of its runs.

    Args:
        name: name in messages, a text of up to 120 bytes.
        errors: the queue for items that have failed for good; by default a stage stops at such an item.
        inputs: the queues that items enter the pipeline by, a name or several; default the queues that stages read and
            no stage or source writes.
        outputs: the queues that readers outside the pipeline take items from, a name or several.
        trail: record each hop on the item; ``"payloads"``: with the payload before it.
    """

    def __init__(
        self,
        name: str,
        *,
        errors: str | None = None,
        inputs: Names | None = None,
        outputs: Names = (),
        trail: Trail = False,
    ) -> None:
        self._whole = Graph(
            name=name,
            stages=(),
            errors=errors,
            inputs=None if inputs is None else names(inputs),
            outputs=names(outputs),
            trail=trail,
        )
        self._stages: list[Stage] = []
        self._sources: list[Source] = []

    def __repr__(self) -> str:
        """Return the pipeline's name and its stages, as text."""
        stages = ", ".join(quote_if_odd(stage.name) for stage in self._stages)
        return f"<{type(self).__name__} {self.name!r} of {stages or 'no stages'}>"

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
        batch: int | Default | None = DEFAULT,
        probe: bool | Default = DEFAULT,
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
            success_on: exceptions that count as success.
            max_time: the stack of a handler that runs longer is logged, once; a ``timedelta`` or seconds.
            on_timeout: what happens to its items then, as for consumers: ``"log"``, ``"release"`` or ``"cancel"``.
            batch: the handler takes a list of up to this many payloads, and returns a list with an entry for each.
            probe: while the handler keeps failing, one item at a time is tried.
        """
        options = only_given(
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
                targets=names(to) or (to,),  # an empty tuple would make it a sink, so it stays a fault
                model=model,
                where=where,
                otherwise=otherwise,
                delivery=delivery,
                none=none,
                errors=errors,
                shared=shared,
                options=options,
            )
            return handler

        return declare

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
        success_on: type[BaseException] | Sequence[type[BaseException]] | Default = DEFAULT,
        max_time: Duration | Default | None = DEFAULT,
        on_timeout: OnTimeout | Default = DEFAULT,
        batch: int | Default | None = DEFAULT,
        probe: bool | Default = DEFAULT,
    ) -> Callable[[H], H]:
        """Declare a stage where items end: any returned value means success, and the item is done.

        The arguments are those of ``stage``, without ``to`` and ``none``.
        """
        options = only_given(
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

        sources = decorator_names(source, "sink")

        def declare(handler: H) -> H:
            self._add(
                handler,
                name=name,
                sources=sources,
                targets=(),
                model=model,
                where=where,
                otherwise=otherwise,
                delivery=delivery,
                errors=errors,
                shared=shared,
                options=options,
            )
            return handler

        return declare

    def describe(self) -> str:
        """Return the pipeline as plain text, source by source and stage by stage; also if it has faults."""
        return description(self.graph)

    def to_mermaid(self) -> str:
        """Return the pipeline as a flowchart for Mermaid.

        Stages are boxes, queues are rounded, sources are cylinders; routes of errors and of ``otherwise`` are dashed.
        """
        return mermaid(self.graph)

    def compare(self, other: Pipeline) -> list[Difference]:
        """Return the differences of another pipeline: its own settings, then sources and stages by name, then queues.

        Handlers are compared by their import path, such as ``app.stages:check``. The order of stages, and of the queues
        of a stage, makes no difference.

        Raises:
            ArgumentInvalid: ``other`` is not a pipeline.
        """
        if not isinstance(other, Pipeline):
            raise ArgumentInvalid("other", f"a Pipeline, not {type(other).__name__}")
        return differences(self.graph, other.graph)

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any] | str | PathLike[str]) -> Pipeline:
        """Return the pipeline that a recipe describes, checked; see [recipes](recipes.md).

        The handlers and models that a recipe names are imported, so use only recipes that you trust as much as code.

        Args:
            recipe: a mapping, or the path of a file: ``.yaml`` or ``.yml``, which need PyYAML, or ``.json``; at most 1
                MiB.

        Raises:
            GraphInvalid: the recipe cannot be read, an import fails, or the pipeline has faults; the error lists all
                faults.
            ArgumentInvalid: the argument is neither, or PyYAML is not installed.
            OSError: the file cannot be opened.
        """
        graph = graph_of(recipe)
        pipeline = cls(graph.name)
        pipeline._whole, pipeline._stages, pipeline._sources = graph, list(graph.stages), list(graph.sources)
        return pipeline
