"""Exit codes, and errors of the driver in one line."""

from __future__ import annotations

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


def describe_error(error: MongoqError) -> tuple[str, int]:
    """Return an error of mongoq in one line, and its exit code."""
    if isinstance(error, ServerUnavailable):
        return str(error), UNAVAILABLE
    if not isinstance(error, ArgumentInvalid):
        return str(error), OPERATION_FAILED
    if error.argument in STATE_ARGUMENTS:
        return error.problem, OPERATION_FAILED
    return str(error), WRONG_USAGE


def describe_driver_error(error: PyMongoError) -> str:
    """Return an error of the driver in one line, without its topology dump and without values of documents."""
    if isinstance(error, OperationFailure):
        if is_refused_user(error):
            return f"MongoDB {describe_refused_user(error)}"
        return f"MongoDB refused the command: code {error.code}"
    return f"{type(error).__name__}: {str(error).partition(', Timeout:')[0]}"
