"""Spark's Python processes: their connections to MongoDB, and their garbage collector.

Spark reuses its Python workers, so each keeps one broker over the batches.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, TypeVar

from mongoq.connection import connect
from mongoq.data.encoding.error_text import spoken
from mongoq.errors import ArgumentInvalid
from mongoq.spark.raw_options import SETUP, Location
from mongoq.spark.scan import Scan
from mongoq.sync import Broker

PLAN_TIMEOUT_SECONDS = 5.0
TASK_TIMEOUT_SECONDS = 30.0
"""Seconds that a task waits for a server: an election takes about twelve."""

T = TypeVar("T")
NOTHING = object()

_brokers: dict[tuple[int, Location], Broker] = {}
_lock = threading.Lock()


def broker_at(place: Location, *, patience: float = TASK_TIMEOUT_SECONDS) -> Broker:
    """Return this process's broker for a location, connected and checked; it lasts as long as the process.

    A forked process makes its own broker. ``patience`` in seconds counts for the first call only. Raises the errors of
    ``mongoq.connect`` and of the location's ``setup``.
    """
    # The pid is part of the key: a forked process inherits this table, but must not use the parent's connections.
    key = os.getpid(), place
    with _lock:
        if key not in _brokers:
            with ExitStack() as undo:
                broker = connect(place.uri, database=place.database, collection=place.collection, timeout=patience)
                undo.callback(broker.close)
                if place.setup is not None:
                    find_setup(place.setup)(broker)
                undo.pop_all()
            _brokers[key] = broker
        return _brokers[key]


def find_setup(path: str) -> Callable[[Broker], object]:
    """Return the function of an import path.

    Raises:
        ArgumentInvalid: it cannot be imported in this process.
    """
    module, _, name = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        problem = f"this process cannot import {path!r}: {spoken(error)}; put it where Spark's Python processes find it"
        raise ArgumentInvalid(SETUP, problem) from error
    if not callable(found):
        raise ArgumentInvalid(SETUP, f"{path!r} is to be a function of the broker, not {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def flush_observer(broker: Broker) -> None:
    """Send what an instrumentation has observed: Spark may kill this process once its task has ended."""
    observer = broker._driver.observer
    if observer is not None:
        observer.flush()


def scan_at(place: Location, *, patience: float = PLAN_TIMEOUT_SECONDS, preference: str | None = None) -> Scan:
    """Return a scan of a location; its ``with`` block closes it. A preference replaces the URI's read preference."""
    return Scan(place.uri, place.database, place.collection, patience=patience, preference=preference)


@contextmanager
def pause_gc() -> Iterator[None]:
    """Pause the cyclic collector inside a block, which makes many objects without cycles; one that was off stays off.

    Used only in Spark's Python workers, which run no other code meanwhile.
    """
    # The collector scans the young objects each time that a number of them was made, and the rows of a read are all
    # young: the scans take more than half of the time of a read. Objects without cycles are freed all the same.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def pause_while_making(values: Iterator[T]) -> Iterator[T]:
    """Yield values, each made while the collector pauses; it runs again while the consumer handles the value."""
    while True:
        # Only around next: the code that takes the values runs with the collector.
        with pause_gc():
            value = next(values, NOTHING)
        if value is NOTHING:
            return
        yield value  # type: ignore[misc]  # the end was checked above
