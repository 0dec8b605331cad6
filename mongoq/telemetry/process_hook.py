"""Process hook: the span, the duration and the context variables around each call of a handler."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from opentelemetry.context import attach, create_key, detach, get_current, get_value, set_value
from opentelemetry.trace import set_span_in_context

from mongoq.model.outcomes import Dead, Outcome, Retry
from mongoq.telemetry import conventions
from mongoq.telemetry.context_variables import ContextVariables
from mongoq.telemetry.propagation import Propagation
from mongoq.telemetry.recorder import Recorder, Recording
from mongoq.worker.consumer import LogErrors

_JOB_KEY = create_key("mongoq-job")
"""Key of the job whose span is the current one."""

FAILURES = (BaseException, Retry, Dead)
"""Results of a handler that are failures of an item."""


class ProcessHook:
    """Hook for ``around``: a function from a job to a context manager."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the maker of another hook: providers, with threads and connections, and variables are not pickled."""
        return make_global_hook, (self._recorder.record_errors,)

    def __call__(self, job: Any) -> AbstractContextManager[None]:
        """Return the context manager for one call of a handler."""
        return _Process(self._recorder, job)


def make_global_hook(record_errors: LogErrors = "message") -> ProcessHook:
    """Return a hook with the global providers of this process, and without context variables."""
    propagation = Propagation(ContextVariables((), 0))
    providers: dict[str, Any] = {"tracer_provider": None, "meter_provider": None}
    return ProcessHook(Recorder(propagation, None, **providers, record_errors=record_errors))


class _Process(AbstractContextManager[None]):
    """One call of a handler, with its items: one, or those of a batch."""

    __slots__ = ("_job", "_recorder", "_recording", "_token", "_tokens")

    def __init__(self, recorder: Recorder, job: Any) -> None:
        self._recorder = recorder
        self._job = job
        self._recording: Recording | None = None
        self._token: Any = None
        self._tokens: list[Any] = []

    def __enter__(self) -> None:
        """Start the span, make it the current one, and set the context variables."""
        job, propagation = self._job, self._recorder.propagation
        if get_value(_JOB_KEY) is job:
            return  # the broker and the pipeline are both instrumented
        items = job.items
        context = get_current()
        if len(items) == 1:
            context = propagation.read(items[0].headers, context)
        self._recording = recording = self._recorder.begin(conventions.PROCESS, items[0].queue, context)
        if recording.span.is_recording():
            self._describe(recording, items)
        self._token = attach(set_value(_JOB_KEY, job, set_span_in_context(recording.span, context)))
        if propagation.variables:
            self._tokens = propagation.variables.restore(items)

    def _describe(self, recording: Recording, items: Sequence[Any]) -> None:
        recording.set_attributes({conventions.CONSUMER: self._job.consumer})
        if len(items) == 1:
            item = items[0]
            recording.set_attributes({conventions.MESSAGE_ID: str(item.id), conventions.ATTEMPT: item.attempts})
        else:
            recording.set_attributes({conventions.BATCH_COUNT: len(items)})
        # The conventions ask for the link also where the same context is the parent.
        recording.add_links(self._recorder.propagation.span_contexts(items))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Set everything back, and end the span with the error or the kind of outcome."""
        recording = self._recording
        if recording is None:
            return
        if self._tokens:
            self._recorder.propagation.variables.reset(self._tokens)
        detach(self._token)
        if error is not None:
            recording.fail(error, traced=True)
        elif self._job.returned is not None:
            _describe_outcome(recording, self._job.returned)
        recording.end()


def _describe_outcome(recording: Recording, returned: Any) -> None:
    """Set the outcome of an item; a batch has one for each item, and its first failure counts."""
    # By the type: ``isinstance`` would read ``__class__`` of a user's object, which may raise.
    if issubclass(type(returned), Outcome):
        recording.set_attributes({conventions.OUTCOME: type(returned).__name__})
    entries = returned if type(returned) is list else [returned]
    failure: Any = next((one for one in entries if issubclass(type(one), FAILURES)), None)
    if issubclass(type(failure), BaseException):
        recording.fail(failure, traced=True)
    elif failure is not None:
        recording.fail_as(type(failure).__name__)
