"""Functions on frames, wrapped as handlers of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from pydantic import TypeAdapter

from mongoq.errors import OutcomeInvalid
from mongoq.model.encoding.error_text import name_of
from mongoq.model.encoding.typed import TypedValues
from mongoq.pipeline.frames.given import FrameRows, make_rows
from mongoq.pipeline.frames.results import Results, check_columns
from mongoq.pipeline.graph.graph import Stage
from mongoq.worker.consumer import Consumer
from mongoq.worker.outcome_resolver import check_entries, check_result

__all__ = ["FORMATS", "FrameHandler", "frames_of", "kind_name", "wrap_frame_handler"]

FORMATS = {"pandas": "pandas.DataFrame", "arrow": "pyarrow.Table"}


def kind_name(format: str) -> str:
    """Return the class of frames of this format, as text."""
    return FORMATS[format]


def frames_of(format: str) -> Any:
    """Return the module that makes frames of this format.

    Raises:
        ModuleNotFoundError: the package of the format is not installed; the message names the extra.
    """
    try:
        return import_module(f"mongoq.pipeline.frames.{format}_frames")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mongoq"):
            raise
        needed = FORMATS[format].partition(".")[0]
        hint = f"{format!r} needs {needed}: install mongoq-driver[{format}] (pip install '.[{format}]')"
        raise ModuleNotFoundError(hint, name=error.name) from error


def wrap_frame_handler(consumer: Consumer, stage: Stage) -> Consumer:
    """Return the consumer of a stage on frames: its handler takes and returns lists, like any batch handler."""
    if stage.format is None:
        return consumer
    kind = AsyncFrameHandler if consumer.asynchronous else FrameHandler
    handler = kind(stage.handler, stage.format, targets=stage.targets, model=stage.model, takes_job=consumer.takes_job)
    return replace(consumer, handler=handler, takes_job=True)


class _Frames:
    """Wrapper of a function on frames: makes the frame, maps the result to outcomes; picklable if the function is."""

    def __init__(
        self, function: Callable[..., Any], format: str, *, targets: Sequence[Any], model: Any, takes_job: bool
    ) -> None:
        self.function = function
        self.format = format
        self.targets = tuple(targets)
        self.model = model
        self.takes_job = takes_job

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.function!r}, {self.format}>"

    def _run(self, payloads: Sequence[Any], job: Any) -> _Run:
        return _Run(self, make_rows(job.items, self._dump_payloads(payloads), job))

    def _dump_payloads(self, payloads: Sequence[Any]) -> Sequence[Any]:
        """Return payloads as they are stored. A model has validated them before and may have changed values."""
        if self.model is None:
            return payloads
        adapter = self.model if isinstance(self.model, TypeAdapter) else TypeAdapter(self.model)
        return [TypedValues(adapter).to_stored(payload) for payload in payloads]


class FrameHandler(_Frames):
    """A handler of batches around a plain function."""

    def __call__(self, payloads: Sequence[Any], job: Any) -> Any:
        """Call the function with a frame, and return an entry for each item."""
        run = self._run(payloads, job)
        return run.entries(self.function(*run.arguments(job)))


class AsyncFrameHandler(_Frames):
    """A handler of batches around a coroutine function."""

    async def __call__(self, payloads: Sequence[Any], job: Any) -> Any:
        """Call the coroutine function with a frame, and return an entry for each item."""
        run = self._run(payloads, job)
        return run.entries(await self.function(*run.arguments(job)))


class _Run:
    """One call of a function on frames."""

    def __init__(self, frames: _Frames, rows: FrameRows) -> None:
        self._frames = frames
        self._given = rows
        self._module = frames_of(frames.format)
        self._shown: Any = None

    def arguments(self, job: Any) -> tuple[Any, ...]:
        frame, self._shown = self._module.make_frame({**self._given.envelope, **self._given.fields})
        return (frame, job) if self._frames.takes_job else (frame,)

    def entries(self, returned: Any) -> Any:
        """Return an entry for each item of the batch, from what the function returned."""
        if returned is None:
            told: Sequence[Any] = [None] * len(self._given.ids)
        elif isinstance(returned, BaseException):
            told = [returned] * len(self._given.ids)
        elif isinstance(returned, self._module.KIND):
            told = self._results(returned).entries()
        else:
            check_result(returned)
            told = self._check_returned(returned)
        # Items without a row come back at their positions in the batch, each with its own error.
        return self._with_refused(told)

    def _results(self, returned: Any) -> Results:
        try:
            columns = self._module.columns(returned)
        except (ArithmeticError, LookupError, ValueError) as error:  # Arrow's are ValueErrors or LookupErrors
            raise OutcomeInvalid(f"the frame returned holds what Python cannot read: {error}") from error
        frames = self._frames
        return Results(self._given, self._shown, frames.targets, self._module.NESTED, check_columns(columns))

    def _check_returned(self, returned: Any) -> Sequence[Any]:
        if not isinstance(returned, list | tuple):
            kind = kind_name(self._frames.format)
            hint = f"return a {kind}, a list with an entry for each row, or None"
            raise OutcomeInvalid(f"a stage with format={self._frames.format!r} got a {name_of(returned)}; {hint}")
        return check_entries(self._given.items, returned)

    def _with_refused(self, told: Sequence[Any]) -> Sequence[Any]:
        refused = self._given.refused
        if not refused:
            return told
        rest = iter(told)
        return [refused[place] if place in refused else next(rest) for place in range(len(told) + len(refused))]
