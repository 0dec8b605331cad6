"""Rights: which one a user of the server lacks, and what to grant."""

from __future__ import annotations

import re

from pymongo.errors import OperationFailure

__all__ = ["LOGIN_REFUSED", "UNAUTHORIZED", "advise", "missing_right"]

UNAUTHORIZED = 13
LOGIN_REFUSED = frozenset({11, 17, 18, 334, 8000})
"""What a server answers to credentials that it does not take, or to a mechanism that it does not have."""
READS = {
    "find": "find",
    "aggregate": "find",
    "count": "find",
    "getMore": "find",
    "listCollections": "listCollections",
    "listIndexes": "listIndexes",
    "collStats": "collStats",
    "killCursors": "killCursors",
}
WRITES = {
    "insert": "insert",
    "update": "update",
    "delete": "remove",
    "findAndModify": "update",
    "createIndexes": "createIndex",
}
"""The action that each command needs, by the server's names; the role ``read`` holds those of the first."""
REFUSAL = re.compile(r'not authorized on (\S+) to execute command \{ (\w+): (?:"([^"]*)")?')


def missing_right(error: OperationFailure) -> str:
    """Return what a server refuses, in a sentence that goes on from its name, and what to grant."""
    refusal = REFUSAL.search(str(error))
    if refusal is None:
        return "demands that its clients log in: give user and password (mongodb://user:password@host) in the URI"
    database, command, collection = refusal.groups()
    place = f"{database}.{collection}" if collection else database
    action = {**READS, **WRITES}.get(command, command)
    role = "read" if command in READS else "readWrite"
    return (
        f"knows the user, who may not run {command!r} on {place}: grant the action {action!r} on {place}, or the role "
        f"{role!r} on the database {database!r}"
    )


def advise(error: Exception) -> None:
    """Add to a refusal of the server what to grant, as a note; a traceback shows it behind the server's words."""
    if isinstance(error, OperationFailure) and error.code == UNAUTHORIZED and not getattr(error, "__notes__", None):
        error.add_note(f"mongoq: the server {missing_right(error)}")
