"""Recorder: starts spans, ends them, and records durations."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self

from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, MeterProvider, get_meter, get_meter_provider
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    Span,
    SpanContext,
    Status,
    StatusCode,
    TracerProvider,
    get_tracer,
    get_tracer_provider,
)

import mongoq
from mongoq.data.encoding.error_text import hide_credentials, print_exception, spoken, text_of, type_name
from mongoq.sync.operations import Interruption
from mongoq.telemetry import conventions
from mongoq.telemetry.conventions import Operation
from mongoq.telemetry.propagation import Propagation
from mongoq.worker.consumer import LogErrors
from mongoq.worker.failure_log import exc_info_of

logger = logging.getLogger("mongoq.telemetry")

FLUSH_SECONDS = 2
"""Seconds that an exporter may take at the end of a task of Spark."""
NO_DETAILS: Mapping[str, Any] = MappingProxyType({})
SCOPE = "mongoq"
"""Name of the instrumentation scope."""
API_MODULES = ("opentelemetry.trace", "opentelemetry.metrics")
"""Modules of the providers that stand in for those of an SDK."""
MAX_STATUS = 1024
"""Characters of the text of an error in a span, at most; the traceback has all of it."""


class Recorder:
    """Spans and metrics of one broker, or of the handlers of a pipeline.

    Attributes:
        propagation: reads and writes the headers of items.
        record_errors: what spans say of an error: its ``"message"``, or its ``"type"`` alone.
        tracer: makes the spans.

    Args:
        find_server: returns host and port of the server, as far as they are known.
    """

    def __init__(
        self,
        propagation: Propagation,
        find_server: Callable[[], tuple[str, int | None] | None] | None,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        record_errors: LogErrors = "message",
    ) -> None:
        self.propagation = propagation
        self.record_errors = record_errors
        self._find_server = find_server
        self._providers = tracer_provider, meter_provider
        self._has_reported = False
        self.tracer = get_tracer(SCOPE, mongoq.__version__, tracer_provider=tracer_provider)
        meter = get_meter(SCOPE, mongoq.__version__, meter_provider=meter_provider)

        def histogram(name: str, text: str) -> Histogram:
            bounds = conventions.DURATION_BOUNDS
            return meter.create_histogram(
                name, conventions.DURATION_UNIT, text, explicit_bucket_boundaries_advisory=bounds
            )

        self._client_durations = histogram(conventions.CLIENT_DURATION, conventions.CLIENT_DURATION_TEXT)
        self._process_durations = histogram(conventions.PROCESS_DURATION, conventions.PROCESS_DURATION_TEXT)

    def _find_providers(self) -> tuple[Any, Any]:
        tracers, meters = self._providers
        return tracers or get_tracer_provider(), meters or get_meter_provider()

    def is_recording(self) -> bool:
        """Return whether a provider may keep anything; the providers of the API package keep nothing."""
        return any(not type(one).__module__.startswith(API_MODULES) for one in self._find_providers())

    def begin(
        self,
        operation: Operation,
        queue: str,
        context: Context | None = None,
        began: float = 0,
        *,
        details: Mapping[str, Any] = NO_DETAILS,
        links: Sequence[SpanContext] = (),
    ) -> Recording:
        """Start the span of an operation, now or ``began`` seconds ago; a span that fails to start is left out.

        ``details`` are attributes of the span alone. Given here, they cost half of what ``set_attributes`` does.
        """
        attributes: dict[str, Any] = {
            conventions.SYSTEM: conventions.MONGOQ,
            conventions.OPERATION_NAME: operation.name,
            **({conventions.DESTINATION: queue} if queue else {}),
        }
        host, port = (self._find_server and self._find_server()) or (None, None)
        if host is not None:
            attributes[conventions.SERVER_ADDRESS] = host
            if port is not None:  # it is no socket in the file system
                attributes[conventions.SERVER_PORT] = port
        try:
            span = self.tracer.start_span(
                f"{operation.name} {queue}".rstrip(),
                context,
                operation.kind,
                {**attributes, conventions.OPERATION_TYPE: operation.type, **details},
                links=[Link(context) for context in links],
                # The clock of dates: spans of several processes are shown together.
                start_time=time.time_ns() - int(began * 1e9) if began else None,
                record_exception=False,
                set_status_on_exception=False,
            )
        except Exception as error:
            self.report(error)
            span = INVALID_SPAN
        process = operation is conventions.PROCESS
        durations = self._process_durations if process else self._client_durations
        return Recording(self, span, durations, attributes, time.perf_counter() - began)

    def flush(self) -> None:
        """Let the providers send what they have kept, for ``FLUSH_SECONDS`` each at most."""
        for provider in self._find_providers():
            force_flush = getattr(provider, "force_flush", None)  # of an SDK; the API has none
            if force_flush is None:
                continue
            try:
                force_flush(FLUSH_SECONDS * 1000)
            except Exception as error:
                self.report(error)

    def report(self, error: Exception) -> None:
        """Log the first error of a sampler or a processor of the user: it must not fail the operation."""
        if not self._has_reported:
            self._has_reported = True
            logger.warning("a span or a duration could not be recorded: %s", spoken(error))


class Recording:
    """One operation under way.

    Attributes:
        span: its span.
    """

    __slots__ = ("_attributes", "_began", "_durations", "_recorder", "span")

    def __init__(
        self, recorder: Recorder, span: Span, durations: Histogram, attributes: dict[str, Any], began: float
    ) -> None:
        self.span = span
        self._recorder = recorder
        self._durations = durations
        self._attributes = attributes
        self._began = began

    def __enter__(self) -> Self:
        """Return the recording of an operation, which ends with the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, with the error of the block."""
        self.end(error)

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of the span, except absent ones; attributes of metrics must have few values."""
        self.span.set_attributes({name: value for name, value in attributes.items() if value is not None})

    def add_links(self, contexts: Iterable[SpanContext]) -> None:
        """Link the span to other ones."""
        for context in contexts:
            self.span.add_link(context)

    def fail(self, error: BaseException, *, traced: bool = False) -> None:
        """Mark the operation as failed by an exception; ``traced`` records its traceback as well."""
        kind = type_name(error)
        if not self.span.is_recording():
            self.fail_as(kind)
            return
        # Not record_exception: a user's exception may have no text, or one that no exporter can encode.
        text = hide_credentials(text_of(error, MAX_STATUS)) if self._recorder.record_errors == "message" else None
        self.fail_as(kind, text)
        if traced:
            event = {conventions.EXCEPTION_TYPE: kind}
            if text is not None:
                event[conventions.EXCEPTION_MESSAGE] = text
                event[conventions.EXCEPTION_STACKTRACE] = hide_credentials(print_exception(error))
            elif (exc_info := exc_info_of(error, "type")) is not None:  # the type, and the places in the code
                event[conventions.EXCEPTION_STACKTRACE] = "".join(traceback.format_exception(*exc_info))
            self.span.add_event(conventions.EXCEPTION, event)

    def fail_as(self, kind: str, text: str | None = None) -> None:
        """Mark the operation as failed, by the kind of its failure."""
        self._attributes[conventions.ERROR_TYPE] = kind
        self.span.set_attribute(conventions.ERROR_TYPE, kind)
        self.span.set_status(Status(StatusCode.ERROR, text))

    def end(self, error: BaseException | None = None) -> None:
        """End the span, and record the duration; an operation that was cancelled has failed as ``cancelled``."""
        if isinstance(error, Exception):
            self.fail(error.cause if isinstance(error, Interruption) else error)
        elif error is not None:
            self.fail_as("cancelled")
        try:
            self._durations.record(time.perf_counter() - self._began, self._attributes)
            self.span.end()
        except Exception as problem:
            self._recorder.report(problem)
