"""How Spark's Python processes reach MongoDB: scans of their own, and one broker that lasts as long as the process.

Spark reuses its Python workers, and each keeps its client over the batches.
"""

from __future__ import annotations

import os
import threading

from mongoq.connection import connect
from mongoq.spark.raw_options import Location
from mongoq.spark.scan import Scan
from mongoq.sync import Broker

__all__ = ["PLAN_PATIENCE", "TASK_PATIENCE", "broker_at", "scan_at"]

PLAN_PATIENCE = 5.0
TASK_PATIENCE = 30.0
"""Seconds that a task waits for a server: an election takes about twelve."""

_brokers: dict[tuple[int, Location], Broker] = {}
_lock = threading.Lock()


def broker_at(place: Location, *, patience: float = TASK_PATIENCE) -> Broker:
    """Return the broker of this process for a place, connected and checked; it lasts as long as the process.

    A forked process makes its own. ``patience`` in seconds is for the first of them.

    Raises:
        ArgumentInvalid, ServerUnavailable, AuthenticationFailed, CollectionSharded, SchemaTooNew: as
            ``mongoq.connect``.
    """
    key = os.getpid(), place
    with _lock:
        if key not in _brokers:
            _brokers[key] = connect(place.uri, database=place.database, collection=place.collection, timeout=patience)
        return _brokers[key]


def scan_at(place: Location, *, patience: float = PLAN_PATIENCE, preference: str | None = None) -> Scan:
    """Return a scan of a place, to be closed by its ``with`` block.

    Args:
        place: where the queues are.
        patience: seconds to wait for a server.
        preference: where to read, by the name of a read preference; ``None`` for what the URI says.
    """
    return Scan(place.uri, place.database, place.collection, patience=patience, preference=preference)
