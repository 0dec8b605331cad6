"""Telemetry: spans and metrics of a broker and its workers, by OpenTelemetry's conventions for messaging.

It uses the API package of OpenTelemetry alone: without an SDK nothing is recorded. Nothing in the core imports it.
"""

try:
    import opentelemetry.propagate
    import opentelemetry.trace  # noqa: F401  # the check is the import
except ModuleNotFoundError as error:
    hint = "mongoq.telemetry needs opentelemetry-api: install mongoq-driver[otel] (pip install '.[otel]')"
    raise ModuleNotFoundError(hint, name=error.name) from error

from mongoq.telemetry.instrument import instrument, uninstrument

__all__ = ["instrument", "uninstrument"]
