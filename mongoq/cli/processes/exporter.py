"""Command ``mongoq exporter``, and what it shares with ``mongoq worker --http``: metrics and probes by HTTP."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

import click

import mongoq
from mongoq.aio.inspection import BUDGET
from mongoq.cli.base.arguments import ADDRESS, DEFAULT_HOST, to_url
from mongoq.cli.base.connection import TIMEOUT_SECONDS, find_place, with_connection
from mongoq.cli.base.logs import configure_logging, log_options
from mongoq.data.process import Health
from mongoq.errors import AuthenticationFailed, BrokerClosed, MongoqError, ServerUnavailable
from mongoq.monitoring.durations import RunDurations
from mongoq.monitoring.health_server import HealthServer
from mongoq.sync import Broker
from mongoq.worker.signals import stop_on_signals

if TYPE_CHECKING:
    from mongoq.monitoring.prometheus import BrokerReading

logger = logging.getLogger("mongoq.cli")

CACHE_SECONDS = 5.0
"""Seconds for which a reading of the queues serves all scrapes."""
NEEDED_EXTRA = "metrics need the extra 'prometheus': pip install 'mongoq-driver[prometheus]'"
DEFAULT_PORT = 9471
UNREACHED = "no MongoDB server answers, or it refuses the user; the log says which, and why"
"""Reason for callers of ``/readyz``, who need no login; the text of the error names hosts."""


@click.command()
@with_connection
@click.option(
    "--http",
    type=ADDRESS,
    default=f"{DEFAULT_HOST}:{DEFAULT_PORT}",
    help="Where to serve /metrics, /healthz and /readyz. Without HOST for this machine alone.",
)
@click.option("--budget", type=click.IntRange(1), default=BUDGET, help="Items to count in a scrape.")
@click.option(
    "--cache",
    type=click.FloatRange(0),
    default=CACHE_SECONDS,
    help="Seconds for which scrapes share one reading of the queues.",
)
@log_options
def exporter(
    *, http: tuple[str, int], budget: int, cache: float, log_level: str, log_format: str, **place: str | None
) -> None:
    """Serve the state of all queues as metrics for Prometheus, at /metrics.

    While no server answers, mongoq_up is 0. SIGTERM or Ctrl-C ends the command.
    """
    configure_logging(log_level, log_format)
    stopped = threading.Event()
    with ServerReader(find_place(**place), budget=budget) as reader, stop_on_signals(stopped.set):
        render = metrics_renderer(None, reader.read, cache=cache)
        if render is None:
            raise click.ClickException(NEEDED_EXTRA)
        try:
            reader.connect()
        except AuthenticationFailed:  # a mistake in the options, as all other errors
            raise
        except ServerUnavailable as error:  # the server may come later
            logger.warning("%s", error)

        def check() -> Health:
            try:
                return reader.connect().health(within=TIMEOUT_SECONDS)
            except ServerUnavailable as error:
                logger.warning("%s", error)
                return Health.of([UNREACHED])
            except MongoqError as error:
                return Health.of([str(error)])

        with serve(http, check, render):
            stopped.wait()


@contextmanager
def serve(
    address: tuple[str, int] | None, health: Callable[[], Health], metrics: Callable[[], bytes] | None
) -> Iterator[None]:
    """Answer probes and scrapes for the length of a block, if there is an address for them."""
    if address is None:
        yield
        return
    with HealthServer(*address, health, metrics) as server:
        # The port that the system has chosen for 0.
        logger.info("%s are served at %s", server.list_paths(), to_url(address[0], server.port))
        yield


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

    def __exit__(self, *error: object) -> None:
        """Close the connection; a reading under way may fail."""
        with self._lock:
            self._closed = True
            if self._broker is not None:
                self._broker.close()
