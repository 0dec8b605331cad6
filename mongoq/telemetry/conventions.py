"""Names of OpenTelemetry's semantic conventions for messaging, and of mongoq's own attributes.

The conventions for messaging are still in development, so no other module knows their names.
"""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry.trace import SpanKind

SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
BATCH_COUNT = "messaging.batch.message_count"
ERROR_TYPE = "error.type"
EXCEPTION = "exception"
"""Name of the event of an exception."""
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
EXCEPTION_STACKTRACE = "exception.stacktrace"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"

CLIENT_DURATION = "messaging.client.operation.duration"
CLIENT_DURATION_TEXT = "Duration of messaging operation initiated by a producer or consumer client."
PROCESS_DURATION = "messaging.process.duration"
PROCESS_DURATION_TEXT = "Duration of processing operation."
DURATION_UNIT = "s"
DURATION_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

MONGOQ = "mongoq"
"""Value of ``messaging.system``."""
CONSUMER = "mongoq.consumer"
"""Stage of a pipeline, or queue, whose handler is called."""
ATTEMPT = "mongoq.attempt"
"""Number of reservations of the item in its queue, this one included."""
OUTCOME = "mongoq.outcome"
"""Kind of outcome that the handler has returned: ``Retry``, ``Dead``, ``Move``, ``Fork`` or another."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the conventions.

    Attributes:
        name: name in spans and metrics.
        type: one of the types that the conventions list.
        kind: kind of its spans.
    """

    name: str
    type: str
    kind: SpanKind


PUSH = Operation("push", "send", SpanKind.PRODUCER)
POP = Operation("pop", "receive", SpanKind.CLIENT)
RESERVE = Operation("reserve", "receive", SpanKind.CLIENT)
COMMIT = Operation("commit", "settle", SpanKind.CLIENT)
ROLLBACK = Operation("rollback", "settle", SpanKind.CLIENT)
RELEASE = Operation("release", "settle", SpanKind.CLIENT)
MOVE = Operation("move", "settle", SpanKind.CLIENT)
BURY = Operation("bury", "settle", SpanKind.CLIENT)
SETTLE = Operation("settle", "settle", SpanKind.CLIENT)
"""Settlement of a worker: its items have different outcomes."""
PROCESS = Operation("process", "process", SpanKind.CONSUMER)
