"""Functions on frames, wrapped as handlers of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from pydantic import TypeAdapter

from mongoq.data.encoding.error_text import name_of
from mongoq.data.encoding.typed import TypedValues
from mongoq.errors import OutcomeInvalid
from mongoq.pipeline.frames.rows import FrameRows, check_columns
from mongoq.pipeline.graph.graph import Stage
from mongoq.worker.consumer import Consumer
from mongoq.worker.outcome_resolver import check_entries, check_result

FORMATS = {"pandas": "pandas.DataFrame", "arrow": "pyarrow.Table"}
"""Classes of frames, by format."""


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
    return replace(consumer, handler=kind(stage, takes_job=consumer.takes_job), takes_job=True)


class _Frames:
    """Wrapper of a function on frames: makes the frame, maps the result to outcomes; picklable if the function is."""

    def __init__(self, stage: Stage, *, takes_job: bool) -> None:
        self.function = stage.handler
        self.format = stage.format
        self.targets = stage.targets
        self.model = stage.model
        self.takes_job = takes_job

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.function!r}, {self.format}>"

    def _make_call(self, payloads: Sequence[Any], job: Any) -> tuple[tuple[Any, ...], Callable[[Any], Sequence[Any]]]:
        """Return the arguments for the function, and a function from what it returns to an entry for each item."""
        if self.model is not None:
            # As they are stored: the model has validated them before and may have changed values.
            adapter = self.model if isinstance(self.model, TypeAdapter) else TypeAdapter(self.model)
            payloads = [TypedValues(adapter).to_stored(payload) for payload in payloads]
        module, rows = frames_of(self.format), FrameRows(job.items, payloads, job)
        frame, frame_values = module.make_frame({**rows.envelope, **rows.fields})

        def read_entries(returned: Any) -> Sequence[Any]:
            if returned is None or isinstance(returned, BaseException):
                entries: Sequence[Any] = [returned] * len(rows.items)
            elif isinstance(returned, module.KIND):
                try:
                    columns = module.columns(returned)
                except (ArithmeticError, LookupError, ValueError) as error:  # Arrow's are ValueErrors or LookupErrors
                    raise OutcomeInvalid(f"the frame returned holds what Python cannot read: {error}") from error
                columns = check_columns(columns)
                entries = rows.read_outcomes(columns, frame_values, self.targets, nested=module.NESTED)
            else:
                check_result(returned)
                if not isinstance(returned, list | tuple):
                    hint = f"return a {FORMATS[self.format]}, a list with an entry for each row, or None"
                    raise OutcomeInvalid(f"a stage with format={self.format!r} got a {name_of(returned)}; {hint}")
                entries = check_entries(rows.items, returned)
            # Items without a row stand at their positions in the batch, each with its own error.
            rest, places = iter(entries), range(len(entries) + len(rows.refused))
            return [rows.refused[place] if place in rows.refused else next(rest) for place in places]

        return (frame, job) if self.takes_job else (frame,), read_entries


class FrameHandler(_Frames):
    """A handler of batches around a plain function."""

    def __call__(self, payloads: Sequence[Any], job: Any) -> Any:
        """Call the function with a frame, and return an entry for each item."""
        arguments, read_entries = self._make_call(payloads, job)
        return read_entries(self.function(*arguments))


class AsyncFrameHandler(_Frames):
    """A handler of batches around a coroutine function."""

    async def __call__(self, payloads: Sequence[Any], job: Any) -> Any:
        """Call the coroutine function with a frame, and return an entry for each item."""
        arguments, read_entries = self._make_call(payloads, job)
        return read_entries(await self.function(*arguments))
