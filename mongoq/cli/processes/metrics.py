"""Metrics of the command line: what ``mongoq worker --http`` and ``mongoq exporter`` serve at ``/metrics``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

import mongoq
from mongoq.cli.base.connection import TIMEOUT_SECONDS
from mongoq.errors import BrokerClosed
from mongoq.monitoring.durations import RunDurations
from mongoq.protocol.insight import BUDGET
from mongoq.sync import Broker

if TYPE_CHECKING:
    from mongoq.monitoring.prometheus import BrokerReading

logger = logging.getLogger("mongoq.cli")

CACHE_SECONDS = 5.0
"""Seconds for which a reading of the queues serves all scrapes."""
NEEDED_EXTRA = "metrics need the extra 'prometheus': pip install 'mongoq-driver[prometheus]'"


def metrics_renderer(
    durations: RunDurations | None, read: Callable[[], BrokerReading] | None, *, cache: float = CACHE_SECONDS
) -> Callable[[], bytes] | None:
    """Return the function that renders the metrics; ``None`` without prometheus-client, which the log says.

    Args:
        durations: handler calls; ``None`` to leave them out.
        read: reads the state of all queues; ``None`` to leave it out.
        cache: seconds for which a reading is used.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest

        from mongoq.monitoring.prometheus import BrokerCollector, DurationsCollector
    except ImportError:
        logger.info("there is no /metrics: %s", NEEDED_EXTRA)
        return None
    registry = CollectorRegistry()
    if read is not None:
        registry.register(BrokerCollector(read, cache=cache))
    if durations is not None:
        registry.register(DurationsCollector(durations))
    return partial(generate_latest, registry)


class ServerReader:
    """Reads the queues of a server with a connection of its own, made by the first reading that reaches the server.

    Args:
        place: URI, database and collection.
        budget: items that one reading examines, at most.
    """

    def __init__(self, place: dict[str, str], *, budget: int = BUDGET) -> None:
        self._place = place
        self._budget = budget
        self._lock = threading.Lock()
        self._broker: Broker | None = None
        self._closed = False

    def connect(self) -> Broker:
        """Return the broker; from any thread.

        Raises:
            MongoqError: no server answers, or it cannot be used.
        """
        with self._lock:
            if self._closed:
                raise BrokerClosed
            if self._broker is None:
                self._broker = mongoq.connect(timeout=TIMEOUT_SECONDS, **self._place)  # type: ignore[arg-type]
            return self._broker

    def read(self) -> BrokerReading:
        """Read the state of all queues."""
        from mongoq.monitoring.prometheus import read_broker

        return read_broker(self.connect(), budget=self._budget)

    def __enter__(self) -> Self:
        """Return the reader."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection; a reading under way may fail."""
        with self._lock:
            self._closed = True
            if self._broker is not None:
                self._broker.close()
