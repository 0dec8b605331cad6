"""A run: one handler, working on one item, under one reservation. It leaves its mark in the database.

The mark is made in two writes, so that a run that was killed differs from one that came to its end::

    {_id: {item, token}, queue, attempt, pid, began}        as the handler begins
    {outcome, ended}                                        as the last thing it does

``began`` and ``ended`` are seconds on the machine's monotonic clock, the same in all processes. Since the mark's
``_id`` is the item with the token, the server refuses a second run under one reservation.
"""

from __future__ import annotations

import os
import time
from typing import Any

from pymongo import WriteConcern

import mongoq
from tests.crash.stations import Decision

__all__ = ["begin", "end", "mark", "runs"]


def runs(database: Any) -> Any:
    """Return the collection of the marks, of a database of any client."""
    return database.get_collection("runs", write_concern=WriteConcern("majority"))


def mark(item: mongoq.Item[Any]) -> dict[str, Any]:
    """Return what tells the runs apart."""
    return {"_id": {"item": item.id, "token": item.token}}


def begin(item: mongoq.Item[Any]) -> dict[str, Any]:
    """Return the document to insert as a run begins."""
    fields = {"queue": item.queue, "attempt": item.attempts, "pid": os.getpid(), "began": time.monotonic()}
    return {**mark(item), **fields}


def end(decision: Decision) -> dict[str, Any]:
    """Return the update to make as a run ends."""
    return {"$set": {"outcome": decision, "ended": time.monotonic()}}
