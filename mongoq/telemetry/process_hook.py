"""Process hook: the span, the duration and the context variables around each call of a handler."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from opentelemetry.context import Context, attach, create_key, detach, get_current, get_value, set_value
from opentelemetry.trace import set_span_in_context

from mongoq.data.outcomes import Dead, Outcome, Retry
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
    """One call of a handler, with its items: one, or a batch."""

    __slots__ = ("_job", "_recorder", "_recording", "_token", "_tokens")

    def __init__(self, recorder: Recorder, job: Any) -> None:
        self._recorder = recorder
        self._job = job
        self._recording: Recording | None = None
        self._token: Any = None
        self._tokens: list[Any] = []

    def __enter__(self) -> None:
        """Start the span, make it the current one, and set the context variables."""
        job, variables = self._job, self._recorder.propagation.variables
        if get_value(_JOB_KEY) is job:
            return  # the broker and the pipeline are both instrumented
        # Without variables, a worker enters this hook only if there is something to record.
        if not variables or self._recorder.is_recording():
            self._begin(job)
        if variables:
            self._tokens = variables.restore(job.items)

    def _begin(self, job: Any) -> None:
        items, context = job.items, get_current()
        if len(items) == 1:
            context, recording = self._begin_single(items[0], context)
        else:
            details = {conventions.CONSUMER: job.consumer, conventions.BATCH_COUNT: len(items)}
            recording = self._recorder.begin(conventions.PROCESS, items[0].queue, context, details=details)
            if recording.span.is_recording():
                recording.add_links(self._recorder.propagation.span_contexts(items))
        self._recording = recording
        self._token = attach(set_value(_JOB_KEY, job, set_span_in_context(recording.span, context)))

    def _begin_single(self, item: Any, current: Context) -> tuple[Context, Recording]:
        """Start the span of one item below its push; the conventions ask for a link to it as well."""
        context, links = self._recorder.propagation.read_with_links(item.headers, current)
        details = {
            conventions.CONSUMER: self._job.consumer,
            conventions.MESSAGE_ID: str(item.id),
            conventions.ATTEMPT: item.attempts,
        }
        return context, self._recorder.begin(conventions.PROCESS, item.queue, context, details=details, links=links)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Set everything back, and end the span with the error or the kind of outcome."""
        if self._tokens:
            self._recorder.propagation.variables.reset(self._tokens)
        recording = self._recording
        if recording is None:
            return
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
