"""Command ``mongoq exporter``: serves the state of all queues as metrics for Prometheus."""

from __future__ import annotations

import logging
import threading

import click

from mongoq.cli.base.arguments import ADDRESS, DEFAULT_HOST, to_url
from mongoq.cli.base.connection import TIMEOUT_SECONDS, find_place, with_connection
from mongoq.cli.base.logs import configure_logging, log_options
from mongoq.cli.processes.metrics import CACHE_SECONDS, NEEDED_EXTRA, ServerReader, metrics_renderer
from mongoq.errors import AuthenticationFailed, MongoqError, ServerUnavailable
from mongoq.model.health import Health
from mongoq.monitoring.health_server import HealthServer
from mongoq.protocol.insight import BUDGET
from mongoq.worker.signals import stop_on_signals

logger = logging.getLogger("mongoq.cli")

DEFAULT_PORT = 9471
UNREACHED = "no MongoDB server answers, or it refuses the user; the log says which, and why"
"""Reason for callers of ``/readyz``, who need no login; the text of the error names hosts."""


@click.command()
@with_connection
@click.option(
    "--http",
    type=ADDRESS,
    default=f"{DEFAULT_HOST}:{DEFAULT_PORT}",
    show_default=True,
    help="Where to serve /metrics, /healthz and /readyz. Without HOST for this machine alone.",
)
@click.option("--budget", type=click.IntRange(1), default=BUDGET, show_default=True, help="Items to count in a scrape.")
@click.option(
    "--cache",
    type=click.FloatRange(0),
    default=CACHE_SECONDS,
    show_default=True,
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
        with HealthServer(*http, lambda: _check(reader), render) as server:
            logger.info("%s are served at %s", server.list_paths(), to_url(http[0], server.port))
            stopped.wait()


def _check(reader: ServerReader) -> Health:
    try:
        return reader.connect().health(within=TIMEOUT_SECONDS)
    except ServerUnavailable as error:
        logger.warning("%s", error)
        return Health.of([UNREACHED])
    except MongoqError as error:
        return Health.of([str(error)])
