"""Log lines of failed runs: one line and a traceback each, without credentials and payloads."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from pydantic import ValidationError

from mongoq.model.arguments import duration
from mongoq.model.encoding.error_text import hide_credentials, one_line, printable, text_of, trace_of, user_trace_of
from mongoq.model.envelope import error_document, shorten
from mongoq.model.item import Item
from mongoq.model.log_fields import log_fields
from mongoq.model.outcomes import Failed, ResolvedOutcome
from mongoq.protocol.state.context import QueueContext
from mongoq.worker.consumer import Consumer, LogErrors
from mongoq.worker.coordinator import Coordinator

logger = logging.getLogger("mongoq.worker")

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

MAX_LINE_BYTES = 500
MAX_CHAIN = 10
"""Errors of a chain (``raise ... from``) that are checked; of a longer chain only the last error is printed."""


def log_failure(
    logger: logging.Logger,
    context: QueueContext[Any],
    item: Item[Any],
    failure: Failed,
    title: str,
    *,
    counted: bool = True,
    gone: bool = False,
    traced: bool = True,
    worker: str = "",
    duration: float | None = None,
    log_errors: LogErrors = "message",
) -> None:
    """Log a failed run: its error, its number, and the next step of the item.

    ``title`` names the queue or the stage. ``counted``: the attempt counts; ``gone``: the item left its queue before
    its run; ``traced``: the traceback is added; ``duration``: seconds of the run, where it is known.
    """
    level, which, fate = logging.ERROR, "", "it stays in the queue, and the stage stops"
    if not failure.halts:
        last = gone or (counted and context.settings.is_spent(item.attempts))
        which = ", its last" if last else ""
        level, fate = _describe_burial(context) if last else _describe_rerun(context, failure, counted=counted)
    words = item.id, title, item.attempts, which, error_line(failure.error, log_errors), fate
    exc_info = exc_info_of(failure.error, log_errors) if traced else None
    fields = log_fields(item, worker=worker, duration=duration)
    logger.log(level, "item %s of %s has failed in run %d%s: %s; %s", *words, exc_info=exc_info, extra=fields)


@dataclass(eq=False, repr=False)
class FailureReporter:
    """Logs the failures of one consumer, and stops it after a failure for good."""

    consumer: Consumer
    coordinator: Coordinator

    def report(
        self, item: Item[Any], outcome: ResolvedOutcome, *, traced: bool = True, duration: float | None = None
    ) -> None:
        """Log the outcome of an item if it is a failure, and stop the consumer if the item has no queue to go to."""
        if isinstance(outcome, Failed):
            self.log(item, outcome, traced=traced, duration=duration)
            if outcome.halts:
                self.coordinator.halt(self.consumer, item, outcome.error)

    def log(self, item: Item[Any], failure: Failed, *, traced: bool = True, duration: float | None = None) -> None:
        """Log a failed run: the error and the next step of the item; ``traced`` adds the traceback."""
        consumer = self.consumer
        own = {"worker": self.coordinator.worker, "log_errors": self.coordinator.log_errors, "duration": duration}
        options: dict[str, Any] = {"counted": failure.counted, "gone": consumer.pops, "traced": traced, **own}
        log_failure(logger, consumer.context, item, failure, consumer.title, **options)


def _describe_burial(context: QueueContext[Any]) -> tuple[int, str]:
    dead = context.settings.dead
    return logging.ERROR, "it is lost" if dead is None else f"it goes to queue {dead!r}"


def _describe_rerun(context: QueueContext[Any], failure: Failed, *, counted: bool) -> tuple[int, str]:
    at = context.broker.clock.now() + duration(failure.delay, "delay")
    free = "" if counted else ", and the attempt does not count"
    level = logging.WARNING if isinstance(failure.error, BaseException) else logging.INFO
    return level, f"it runs again from {at:%Y-%m-%d %H:%M:%S} UTC on{free}"


def error_line(error: BaseException | str | None, log_errors: LogErrors = "message") -> str:
    """Return the type and text of an error in one line; ``"Retry"`` for a retry that the handler declared itself.

    With ``"type"``, the type and the place where it was raised, without any text.
    """
    if not isinstance(error, BaseException):
        return "Retry" if error is None or log_errors == "type" else f"Retry: {text_line(error)}"
    kind, text = _type_and_text(error)
    if log_errors == "type":
        place = _place_of(error)
        return f"{kind} at {place}" if place else kind
    return f"{kind}: {text}" if text else kind


def hide_text(error: BaseException, log_errors: LogErrors) -> object:
    """Return what a log record is to show for an error: the error itself, or its type and place."""
    return error if log_errors == "message" else error_line(error, log_errors)


def _place_of(error: BaseException) -> str:
    """Return file and line where an error was raised; ``""`` for one that was never raised."""
    trace = trace_of(error)
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def exc_info_of(error: BaseException | str | None, log_errors: LogErrors = "message") -> ExcInfo | None:
    """Return ``exc_info`` for a logger; ``None`` for no exception.

    The traceback begins with the first frame of the handler. A formatter prints the whole text of an error. If the text
    quotes a payload or a credential, a stand-in with the same type name and the cleaned line replaces the error,
    without the errors that led to it. With ``"type"`` the stand-in has no text.
    """
    if not isinstance(error, BaseException):
        return None
    trace = user_trace_of(error)
    if log_errors == "message" and _may_be_printed(error):
        return type(error), error, trace
    kind, text = _type_and_text(error)
    stand_in = type(kind, (Exception,), {"__module__": "builtins"})
    return stand_in, stand_in(text) if log_errors == "message" else stand_in(), trace


def _type_and_text(error: BaseException) -> tuple[str, str]:
    failure = error_document(error, datetime.now(UTC)) or {}
    text = failure["message"]
    try:
        text = _public_text(error, text)
    except BaseException:  # noqa: S110  # an error class of the user may raise anything when its attributes are read
        pass
    return text_line(failure["type"]), text_line(text)


def text_line(text: str) -> str:
    """Return a text of a user in one line of a log, without credentials."""
    return shorten(hide_credentials(one_line(text)), MAX_LINE_BYTES)


def _public_text(error: BaseException, text: str) -> str:
    """Return the text of an error, or a summary if the text quotes values. Raises anything that the class raises."""
    if issubclass(type(error), ValidationError):  # not isinstance: it reads ``__class__``, which may raise anything
        invalid: Any = error
        return f"{invalid.error_count()} validation error(s) for {invalid.title}"
    code = getattr(error, "code", None)
    of_server = code is not None and hasattr(error, "has_error_label")  # a server's text may quote a refused document
    return f"code {code}" if of_server else text


def _may_be_printed(error: BaseException) -> bool:
    """Return whether the texts of an error and of all errors that a formatter prints with it may be printed."""
    try:
        chain = _chain(error)
        return len(chain) <= MAX_CHAIN and all(map(_is_public, chain)) and printable(error) is error
    except BaseException:  # an error class of the user may raise anything
        return False


def _is_public(error: BaseException) -> bool:
    text = text_of(error)
    return hide_credentials(_public_text(error, text)) == text


def _chain(error: BaseException) -> list[BaseException]:
    errors = [error]
    for chained in errors:
        members: Any = chained.exceptions if isinstance(chained, BaseExceptionGroup) else ()
        more = (chained.__cause__, None if chained.__suppress_context__ else chained.__context__, *members)
        errors += [each for each in more if each is not None and not any(each is other for other in errors)]
        if len(errors) > MAX_CHAIN:
            break
    return errors
