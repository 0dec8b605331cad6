"""Exit codes, and errors in one line."""

from __future__ import annotations

import click
from pymongo.errors import OperationFailure, PyMongoError

from mongoq.drivers.errors import describe_refused_user, is_refused_user
from mongoq.errors import ArgumentInvalid, MongoqError, ServerUnavailable

OPERATION_FAILED = 1
"""Exit code when mongoq refused or failed: an unknown queue, an item that does not exist, an unhealthy check."""
WRONG_USAGE = 2
"""Exit code for arguments that cannot be used; click's own."""
UNAVAILABLE = 3
"""Exit code when no server answered, or the server refused the user."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells report it."""
STATE_ARGUMENTS = ("queue", "schedule", "host")
"""Arguments whose errors say in a sentence what the command has met: an unknown queue, a port in use."""


def explain(error: Exception) -> tuple[str, int] | None:
    """Return an error in one line, and its exit code; ``None`` for an error that is a fault of the program."""
    if isinstance(error, ServerUnavailable):
        return str(error), UNAVAILABLE
    if isinstance(error, ArgumentInvalid):
        is_state = error.argument in STATE_ARGUMENTS
        return (error.problem, OPERATION_FAILED) if is_state else (str(error), WRONG_USAGE)
    if isinstance(error, MongoqError):
        return str(error), OPERATION_FAILED
    if isinstance(error, PyMongoError):
        return describe_driver_error(error), UNAVAILABLE
    if not isinstance(error, click.ClickException):
        return None
    message = error.format_message()
    if isinstance(error, click.UsageError) and type(error) is not click.UsageError and error.ctx is not None:
        # An error of click's parser: the help page says more.
        message = f"{message.rstrip('.')}; see {error.ctx.command_path} --help"
    return message, error.exit_code


def describe_driver_error(error: PyMongoError) -> str:
    """Return an error of the driver in one line, without its topology dump and without values of documents."""
    if isinstance(error, OperationFailure):
        if is_refused_user(error):
            return f"MongoDB {describe_refused_user(error)}"
        return f"MongoDB refused the command: code {error.code}"
    return f"{type(error).__name__}: {str(error).partition(', Timeout:')[0]}"
