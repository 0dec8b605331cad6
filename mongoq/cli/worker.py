"""Command ``mongoq worker``: runs the workers and pipelines of a program, in one process or in several."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
from pymongo.errors import PyMongoError

from mongoq.cli.connection import TIMEOUT_SECONDS, find_place, refuse_shown_password, with_connection
from mongoq.cli.errors import OPERATION_FAILED, UNAVAILABLE, describe_driver_error
from mongoq.cli.file_watcher import FileWatcher
from mongoq.cli.logs import FORMATS, LEVELS, configure_logging
from mongoq.cli.supervisor import Supervisor
from mongoq.cli.supervisor_link import SupervisorLink
from mongoq.cli.worker_process import WorkerProcess
from mongoq.errors import MongoqError, ServerUnavailable
from mongoq.model.health import Health
from mongoq.monitoring.health_server import HealthServer

logger = logging.getLogger("mongoq.cli")

DEFAULT_HOST = "127.0.0.1"


class Address(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no arguments
    """``HOST:PORT``; without a host, the address of this machine alone."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return host and port."""
        if not isinstance(value, str):
            return value
        host, colon, port = value.rpartition(":")
        if not colon and not value.isdecimal():
            self.fail(f"{value!r} has no port; give HOST:PORT, such as {DEFAULT_HOST}:8080", param, ctx)
        if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
            self.fail(f"{port!r:.60} is no port, a number from 0 to 65535", param, ctx)
        return host.removeprefix("[").removesuffix("]") or DEFAULT_HOST, int(port)


@click.command()
@click.argument("target", metavar="MODULE:OBJECT")
@with_connection
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="Worker processes.")
@click.option("--drain", is_flag=True, help="End when the queues are empty.")
@click.option("--reload", is_flag=True, help="Start again when a .py file of this folder changes; for development.")
@click.option("--http", type=Address(), help="Serve /healthz and /readyz. Without HOST for this machine alone.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(FORMATS), default="text", show_default=True)
def worker(
    target: str,
    *,
    uri: str | None,
    database: str | None,
    collection: str | None,
    processes: int,
    drain: bool,
    reload: bool,
    http: tuple[str, int] | None,
    log_level: str,
    log_format: str,
) -> None:
    """Run a worker or a pipeline, such as app:worker for the object worker of app.py.

    OBJECT is a Worker, an AsyncWorker, a Pipeline, or a function that makes one. The function has no argument, or
    takes the broker. It may be a coroutine function. Modules are looked for in the current folder first.

    SIGTERM or Ctrl-C ends it in good order: handlers that run may go on for the grace of the worker, and all other
    items go back. A second one ends it at once.
    """
    if reload and drain:
        raise click.UsageError("--reload waits for changes, and --drain ends; give one of them")
    if (reload or processes > 1) and os.name != "posix":
        raise click.UsageError("--processes and --reload need Linux, macOS or another POSIX system")
    refuse_shown_password(uri)
    configure_logging(log_level, log_format)
    settings = {"uri": uri, "database": database, "collection": collection}
    link = SupervisorLink.from_environment()
    with _errors_in_log(wanted=log_format == "json"):
        if link is None and (processes > 1 or reload):
            supervisor = Supervisor(
                [target, f"--log-level={log_level}", f"--log-format={log_format}", *(["--drain"] if drain else [])],
                {f"MONGOQ_{name.upper()}": value for name, value in settings.items() if value},
                processes=processes,
                drain=drain,
                watcher=FileWatcher(Path.cwd()) if reload else None,
            )
            with _health(http, supervisor.describe_unreadiness):
                code = supervisor.run()
            click.get_current_context().exit(code)
        process = WorkerProcess(target, partial(_find_server, settings), drain=drain, link=link)
        with _health(http, process.describe_unreadiness):
            process.run()


@contextmanager
def _errors_in_log(*, wanted: bool) -> Iterator[None]:
    """Log the error that ends the command, if stderr is to hold JSON alone; else it is printed as by all commands."""
    try:
        yield
    except click.exceptions.Exit:
        raise
    except Exception as error:
        if not wanted:
            raise
        if isinstance(error, click.ClickException):
            logger.error("%s", error.format_message())  # noqa: TRY400 - the message has the traceback of the user
            code = error.exit_code
        elif isinstance(error, MongoqError):
            logger.error("%s", error)  # noqa: TRY400 - a sentence that says what to do
            code = UNAVAILABLE if isinstance(error, ServerUnavailable) else OPERATION_FAILED
        elif isinstance(error, PyMongoError):
            logger.error("%s", describe_driver_error(error))  # noqa: TRY400 - without values of documents
            code = UNAVAILABLE
        else:
            logger.exception("the worker ends by an error")
            code = OPERATION_FAILED
        click.get_current_context().exit(code)


def _find_server(settings: dict[str, str | None]) -> dict[str, Any]:
    """Return the arguments of ``mongoq.connect``, for a target without a broker of its own."""
    place = find_place(**settings)
    return {"timeout": TIMEOUT_SECONDS, **{name: value for name, value in place.items() if value is not None}}


@contextmanager
def _health(address: tuple[str, int] | None, describe_unreadiness: Callable[[], list[str]]) -> Iterator[None]:
    """Answer probes for the length of a block, if there is an address for them."""
    if address is None:
        yield
        return
    with HealthServer(*address, lambda: Health.of(describe_unreadiness())) as server:
        # The name that the user has given, and the port that the system has chosen for 0.
        logger.info("health is served at http://%s:%d/readyz", _in_url(address[0]), server.port)
        yield


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
