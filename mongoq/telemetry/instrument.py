"""Instrumentation: switches telemetry of a broker, or of the handlers of a pipeline, on and off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from mongoq.aio import AsyncBroker
from mongoq.drivers.observer import Observer
from mongoq.errors import ArgumentInvalid
from mongoq.pipeline import Pipeline
from mongoq.sync import Broker
from mongoq.telemetry.context_variables import ContextVariables
from mongoq.telemetry.flows import observe_flows
from mongoq.telemetry.process_hook import ProcessHook
from mongoq.telemetry.propagation import Propagation
from mongoq.telemetry.recorder import Recorder
from mongoq.worker import AsyncWorker, Worker

Target = Broker | AsyncBroker | Worker | AsyncWorker | Pipeline

MAX_CONTEXT_BYTES = 1024
"""Bytes of context variables in the headers of an item, by default."""


def instrument(
    target: Target,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    context_variables: Iterable[ContextVar[Any]] = (),
    max_context_bytes: int = MAX_CONTEXT_BYTES,
) -> None:
    """Record spans and metrics of a broker, and let the trace context travel in the headers of its items.

    ```python
    broker = mongoq.connect(uri)
    mongoq.telemetry.instrument(broker)
    ```

    It holds for all handles of the broker, those made before as well, and for the workers and the runs of pipelines
    that begin on it afterwards. Nothing else is sent to the server. A second call takes the place of the first.

    - A push has a span ``push {queue}``. It writes ``traceparent``, and ``tracestate`` and ``baggage`` if there are
      any, into the headers, by the global propagator. Headers that the caller gives are never changed.
    - A claim that gets items has a span ``reserve {queue}``. A settlement has a span with the name of the operation,
      or ``settle {queue}`` in a worker. Both link to the pushes of their items.
    - A call of a handler has a span ``process {queue}``, the current one meanwhile. Its parent is the push of the item.
      A batch has no such parent; it links to the push of each of its items.
    - An error of a sampler or a processor is logged once, and fails no operation.

    Without an SDK nothing is recorded. So set the providers before the workers begin: without an SDK and without
    context variables, a worker calls its handlers as if nothing was instrumented, since the calls would take longer.

    Args:
        target: a ``Broker`` or ``AsyncBroker``, virtual ones included; or a worker, which stands for its broker. Or a
            ``Pipeline``, for its runs on Spark: the executors have no broker of yours, so their handlers get spans by
            the providers that are global there, and no context variables.
        tracer_provider: provider of spans; by default the global one.
        meter_provider: provider of metrics; by default the global one.
        context_variables: context variables that travel with the items, as JSON in the headers
            ``mongoq-context-{name}``, and are set around the handler. In a batch, those that all its items agree on.
        max_context_bytes: bytes of these headers of one push, at most. A variable beyond it, or whose value is no JSON,
            is left out, with one warning.

    Raises:
        ArgumentInvalid: an argument cannot be used; or the worker runs already.
    """
    propagation = Propagation(ContextVariables(context_variables, max_context_bytes))
    make = partial(Recorder, propagation, tracer_provider=tracer_provider, meter_provider=meter_provider)
    if isinstance(target, Pipeline):
        uninstrument(target)
        target.around(ProcessHook(make(None)))
        return
    if isinstance(target, Worker | AsyncWorker) and target._engine is not None:
        raise ArgumentInvalid("target", "this comes too late: the worker runs already")
    driver = _driver_of(target)
    recorder = make(lambda: driver.primary)
    driver.observer = Observer(observe_flows(recorder), partial(_make_hooks, recorder))


def uninstrument(target: Target) -> None:
    """Record nothing more of a broker, or of the handlers of a pipeline. Idempotent.

    Handlers of workers that run already have spans until their worker ends.

    Raises:
        ArgumentInvalid: ``target`` is none of the objects that ``instrument`` takes.
    """
    if isinstance(target, Pipeline):
        target._hooks[:] = [hook for hook in target._hooks if not isinstance(hook, ProcessHook)]
    else:
        _driver_of(target).observer = None


def _make_hooks(recorder: Recorder) -> Sequence[ProcessHook]:
    """Return the hook of a worker that begins; none if there is nothing to record and to set."""
    return [ProcessHook(recorder)] if recorder.is_recording() or recorder.propagation.variables else []


def _driver_of(target: Any) -> Any:
    if isinstance(target, Worker | AsyncWorker):
        target = target._broker
    if isinstance(target, Broker | AsyncBroker):
        return target._driver
    hint = "instrument the broker of a run before the run begins"
    raise ArgumentInvalid("target", f"a broker, a worker or a pipeline, not {type(target).__name__}; {hint}")
