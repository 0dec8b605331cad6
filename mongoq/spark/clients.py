"""Connections of Spark's Python processes to MongoDB: scans, and one broker for the lifetime of the process.

Spark reuses its Python workers, so each keeps its client over the batches.
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
    """Return this process's broker for a location, connected and checked; it lasts as long as the process.

    A forked process makes its own broker. ``patience`` in seconds counts for the first call only.

    Raises:
        ArgumentInvalid, ServerUnavailable, AuthenticationFailed, CollectionSharded, SchemaTooNew: as
            ``mongoq.connect``.
    """
    # The pid is part of the key: a forked process inherits this table, but must not use the parent's connections.
    key = os.getpid(), place
    with _lock:
        if key not in _brokers:
            _brokers[key] = connect(place.uri, database=place.database, collection=place.collection, timeout=patience)
        return _brokers[key]


def scan_at(place: Location, *, patience: float = PLAN_PATIENCE, preference: str | None = None) -> Scan:
    """Return a scan of a location; its ``with`` block closes it.

    Args:
        place: location of the queues.
        patience: seconds to wait for a server.
        preference: name of a read preference; ``None``: the URI's.
    """
    return Scan(place.uri, place.database, place.collection, patience=patience, preference=preference)
