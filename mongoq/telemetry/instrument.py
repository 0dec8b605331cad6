"""Instrumentation: switches telemetry of a broker or a pipeline on and off, and observes calls of handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, get_args

from opentelemetry.context import Context, attach, create_key, detach, get_current, get_value, set_value
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import SpanContext, TracerProvider, get_current_span, set_span_in_context

from mongoq.aio import AsyncBroker
from mongoq.data.envelope import LINKS
from mongoq.data.outcomes import Dead, Outcome, Retry
from mongoq.drivers.observer import Observer
from mongoq.errors import ArgumentInvalid
from mongoq.pipeline import Pipeline
from mongoq.pipeline.graph.handlers import ImportFailed, import_object, import_path
from mongoq.spark.raw_options import IMPORT_PATH
from mongoq.sync import Broker
from mongoq.telemetry import conventions
from mongoq.telemetry.aio import operations as operations_aio
from mongoq.telemetry.propagation import ContextVariables, Propagation
from mongoq.telemetry.recorder import Recorder, Recording
from mongoq.telemetry.threads import operations as operations_threads
from mongoq.worker import AsyncWorker, Worker
from mongoq.worker.consumer import LogErrors

_JOB_KEY = create_key("mongoq-job")
"""Key of the job whose span is the current one."""
FAILURES = (BaseException, Retry, Dead)
"""Results of a handler that are failures of an item."""
Target = Broker | AsyncBroker | Worker | AsyncWorker | Pipeline

SETUPS: dict[Any, str] = {
    "message": "mongoq.telemetry.instrument:instrument",
    "type": "mongoq.telemetry.instrument:instrument_types",
}
"""Import paths of the setups of executors, by what their spans say of errors."""
MAX_CONTEXT_BYTES = 1024
"""Bytes of context variables in the headers of an item, by default."""


def instrument(
    target: Target,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    context_variables: Iterable[ContextVar[Any]] = (),
    max_context_bytes: int = MAX_CONTEXT_BYTES,
    record_errors: LogErrors = "message",
    setup: str | Callable[[Broker], object] | None = None,
) -> None:
    """Record spans and metrics of a broker, and let the trace context travel in the headers of its items.

    ```python
    broker = mongoq.connect(uri)
    mongoq.telemetry.instrument(broker)
    ```

    It holds for all handles of the broker, for its workers and for runs of pipelines, those made before as well; for
    what runs already from the next claim on. Nothing else is sent to the server. A second call takes the place of the
    first.

    - A push has a span ``push {queue}``. It writes ``traceparent``, and ``tracestate`` and ``baggage`` if there are
      any, into the headers, by the global propagator. Headers that the caller gives are never changed.
    - A claim that gets items has a span ``reserve {queue}``. A settlement has a span with the name of the operation,
      or ``settle {queue}`` in a worker. Both link to the pushes of their items.
    - A call of a handler has a span ``process {queue}``, the current one meanwhile. Its parent is the push of the item.
      A batch has no such parent; it links to the push of each of its items.
    - An error of a sampler or a processor is logged once, and fails no operation.

    Without an SDK nothing is recorded. Then, and without context variables, a worker calls its handlers as if nothing
    was instrumented. Providers that are set later count from its next claim on.

    Args:
        target: a ``Broker`` or ``AsyncBroker``, virtual ones included; or a worker, which stands for its broker. Or a
            ``Pipeline``, for its runs on Spark: the executors have no broker of yours, so each of their processes
            instruments its own, by the providers that are global there and without context variables, or by ``setup``.
        tracer_provider: provider of spans; by default the global one.
        meter_provider: provider of metrics; by default the global one.
        context_variables: context variables that travel with the items, as JSON in the headers
            ``mongoq-context-{name}``, and are set around the handler. In a batch, those that all its items agree on.
        max_context_bytes: bytes of these headers of one push, at most. A variable beyond it, or whose value is no JSON,
            is left out, with one warning.
        record_errors: what spans say of an error: its type and ``"message"``; or the ``"type"`` and the places in the
            code alone, as ``log_errors`` of a worker.
        setup: of a pipeline: a function, or its import path such as ``"shop.telemetry:configure"``, that each process
            of the executors calls with its broker before it uses it. It makes the providers there, and instruments the
            broker with them.

    Raises:
        ArgumentInvalid: an argument cannot be used.
    """
    if record_errors not in get_args(LogErrors):
        raise ArgumentInvalid("record_errors", f"'message' or 'type', not {record_errors!r:.60}")
    propagation = Propagation(ContextVariables(context_variables, max_context_bytes))
    options: dict[str, Any] = {
        "tracer_provider": tracer_provider,
        "meter_provider": meter_provider,
        "record_errors": record_errors,
    }
    if isinstance(target, Pipeline):
        path = SETUPS[record_errors] if setup is None else _find_setup(setup)
        uninstrument(target)
        target.around(ProcessHook(Recorder(propagation, None, **options)))
        target._spark_setup = path
        return
    if setup is not None:
        raise ArgumentInvalid("setup", "it is for the executors of a pipeline; here, do what it does before this call")
    driver = _driver_of(target)
    recorder = Recorder(propagation, lambda: driver.primary, **options)
    hooks = (ProcessHook(recorder),)
    operations = {**operations_aio.observe_operations(recorder), **operations_threads.observe_operations(recorder)}

    def find_hooks() -> Sequence[ProcessHook]:
        # None while there is nothing to record and to set: global providers may come later.
        return hooks if recorder.is_recording() or recorder.propagation.variables else ()

    driver.observer = Observer(operations, find_hooks, recorder.flush)


def instrument_types(broker: Broker) -> None:
    """Instrument a broker, and keep the texts of errors out of its spans: the setup of executors."""
    instrument(broker, record_errors="type")


def uninstrument(target: Target) -> None:
    """Record nothing more of a broker, or of the handlers of a pipeline. Idempotent.

    Raises:
        ArgumentInvalid: ``target`` is none of the objects that ``instrument`` takes.
    """
    if isinstance(target, Pipeline):
        target._hooks[:] = [hook for hook in target._hooks if not isinstance(hook, ProcessHook)]
        target._spark_setup = None
    else:
        _driver_of(target).observer = None


def _find_setup(setup: Any) -> str:
    """Return the import path of a setup; a function must be found by it, since it is sent to executors by name."""
    path = setup if isinstance(setup, str) else import_path(setup)
    if not IMPORT_PATH.match(path):
        raise ArgumentInvalid("setup", f"a function of a module, or its import path, not {setup!r:.60}")
    try:
        is_found = setup is path or (not path.startswith("__main__:") and import_object(path) is setup)
    except ImportFailed:
        is_found = False
    if not is_found:
        raise ArgumentInvalid("setup", f"executors cannot import {path!r}; put the function into a module of its own")
    return path


def _driver_of(target: Any) -> Any:
    if isinstance(target, Worker | AsyncWorker):
        target = target._broker
    if isinstance(target, Broker | AsyncBroker):
        return target._driver
    hint = "instrument the broker of a run before the run begins"
    raise ArgumentInvalid("target", f"a broker, a worker or a pipeline, not {type(target).__name__}; {hint}")


# --- calls of handlers ---------------------------------------------------------------------------


class ProcessHook:
    """Hook for ``around``: the span, the duration and the context variables of each call of a handler."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the maker of another hook: providers, with threads and connections, and variables are not pickled."""
        return make_global_hook, (self._recorder.record_errors,)

    @contextmanager
    def __call__(self, job: Any) -> Iterator[None]:
        """Start the span of one call, make it the current one, and set the context variables."""
        if get_value(_JOB_KEY) is job:  # the broker and the pipeline are both instrumented
            yield
            return
        variables, recording, token = self._recorder.propagation.variables, None, None
        # Without variables, a worker enters this hook only if there is something to record.
        if not variables or self._recorder.is_recording():
            context, recording = self._begin(job)
            token = attach(set_value(_JOB_KEY, job, set_span_in_context(recording.span, context)))
        restored = variables.restore(job.items)
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            variables.reset(restored)
            if recording is not None and token is not None:
                detach(token)
                if error is not None:
                    recording.fail(error, traced=True)
                elif job.returned is not None:
                    _describe_outcome(recording, job.returned)
                recording.end()

    def _begin(self, job: Any) -> tuple[Context, Recording]:
        """Start the span of one item below its push, or of a batch with links to the pushes."""
        current, propagation, items = get_current(), self._recorder.propagation, job.items
        context, details = current, {conventions.CONSUMER: job.consumer}
        links: Sequence[SpanContext] = ()
        if len(items) == 1:
            headers = items[0].headers
            context = propagation.read(headers, current)
            details |= {conventions.MESSAGE_ID: str(items[0].id), conventions.ATTEMPT: items[0].attempts}
            span = get_current_span(context)
            if LINKS in headers:
                links = propagation.linked_contexts([headers])
            elif span is not get_current_span(current):
                links = (span.get_span_context(),)  # the conventions ask for a link to the parent as well
        else:
            details[conventions.BATCH_COUNT] = len(items)
        recording = self._recorder.begin(conventions.PROCESS, items[0].queue, context, details=details, links=links)
        if len(items) > 1 and recording.span.is_recording():
            recording.add_links(propagation.span_contexts(items))
        return context, recording


def make_global_hook(record_errors: LogErrors = "message") -> ProcessHook:
    """Return a hook with the global providers of this process, and without context variables."""
    propagation = Propagation(ContextVariables((), 0))
    return ProcessHook(Recorder(propagation, None, record_errors=record_errors))


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
