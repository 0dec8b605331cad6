"""Log lines of failed runs: one line and a traceback each, without credentials and payloads."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from pydantic import ValidationError

from mongoq.core.state.context import QueueContext
from mongoq.data.arguments import duration as duration_of
from mongoq.data.encoding.error_text import hide_credentials, one_line, printable, text_of, trace_of, user_trace_of
from mongoq.data.envelope import error_document, shorten
from mongoq.data.item import Item
from mongoq.data.log_fields import log_fields
from mongoq.data.outcomes import Failed
from mongoq.worker.consumer import LogErrors

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
    if failure.halts:
        pass
    elif gone or (counted and context.settings.is_spent(item.attempts)):
        dead = context.settings.dead
        which, fate = ", its last", "it is lost" if dead is None else f"it goes to queue {dead!r}"
    else:
        at = context.broker.clock.now() + duration_of(failure.delay, "delay")
        level = logging.WARNING if isinstance(failure.error, BaseException) else logging.INFO
        free = "" if counted else ", and the attempt does not count"
        fate = f"it runs again from {at:%Y-%m-%d %H:%M:%S} UTC on{free}"
    words = item.id, title, item.attempts, which, error_line(failure.error, log_errors), fate
    exc_info = exc_info_of(failure.error, log_errors) if traced else None
    fields = log_fields(item, worker=worker, duration=duration)
    logger.log(level, "item %s of %s has failed in run %d%s: %s; %s", *words, exc_info=exc_info, extra=fields)


def error_line(error: BaseException | str | None, log_errors: LogErrors = "message") -> str:
    """Return the type and text of an error in one line; ``"Retry"`` for a retry that the handler declared itself.

    With ``"type"``, the type and the place where it was raised, without any text.
    """
    if not isinstance(error, BaseException):
        return "Retry" if error is None or log_errors == "type" else f"Retry: {text_line(error)}"
    kind, text = _type_and_text(error)
    if log_errors == "message":
        return f"{kind}: {text}" if text else kind
    trace = trace_of(error)
    if trace is None:  # it was never raised
        return kind
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{kind} at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def hide_text(error: BaseException, log_errors: LogErrors) -> object:
    """Return what a log record is to show for an error: the error itself, or its type and place."""
    return error if log_errors == "message" else error_line(error, log_errors)


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
        chain = [error]
        for each in chain:
            members: Any = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
            more = (each.__cause__, None if each.__suppress_context__ else each.__context__, *members)
            chain += [one for one in more if one is not None and not any(one is other for other in chain)]
            text = text_of(each)
            if len(chain) > MAX_CHAIN or hide_credentials(_public_text(each, text)) != text:
                return False
        return printable(error) is error
    except BaseException:  # an error class of the user may raise anything
        return False
