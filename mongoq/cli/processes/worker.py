"""Command ``mongoq worker``: runs the workers and pipelines of a program, in one process or in several."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from mongoq.cli.base.arguments import ADDRESS
from mongoq.cli.base.connection import TIMEOUT_SECONDS, find_place, refuse_shown_password, with_connection
from mongoq.cli.base.logs import configure_logging, log_options
from mongoq.cli.base.output import OPERATION_FAILED, explain
from mongoq.cli.processes.exporter import ServerReader, metrics_renderer, serve
from mongoq.cli.processes.supervisor import FileWatcher, Supervisor
from mongoq.cli.processes.worker_process import SupervisorLink, WorkerProcess
from mongoq.monitoring.durations import RunDurations
from mongoq.worker.consumer import LogErrors

if TYPE_CHECKING:
    from mongoq.monitoring.prometheus import BrokerReading

logger = logging.getLogger("mongoq.cli")


@click.command()
@click.argument("target", metavar="MODULE:OBJECT")
@with_connection
@click.option("--processes", type=click.IntRange(min=1), default=1, help="Worker processes.")
@click.option("--drain", is_flag=True, help="End when the queues are empty.")
@click.option("--reload", is_flag=True, help="Start again when a .py file of this folder changes; for development.")
@click.option("--http", type=ADDRESS, help="Serve /healthz, /readyz and /metrics. Without HOST for this machine alone.")
@click.option(
    "--metrics",
    type=click.Choice(["all", "process"]),
    default="all",
    help="What /metrics has: the state of all queues as well, or the runs of this worker alone.",
)
@click.option("--report-durations", is_flag=True, hidden=True, help="Report runs to the supervisor.")
@log_options
@click.option(
    "--log-errors",
    type=click.Choice(get_args(LogErrors)),
    help="What logs say of errors of handlers: their message, or their type alone; default as OBJECT says.",
)
def worker(
    target: str,
    *,
    processes: int,
    drain: bool,
    reload: bool,
    http: tuple[str, int] | None,
    metrics: str,
    report_durations: bool,
    log_level: str,
    log_format: str,
    log_errors: LogErrors | None,
    **settings: str | None,
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
    refuse_shown_password(settings["uri"])
    configure_logging(log_level, log_format)
    link = SupervisorLink.from_environment()
    durations = RunDurations() if http is not None or report_durations else None
    with _errors_in_log(wanted=log_format == "json"), ExitStack() as stack:
        if link is None and (processes > 1 or reload):
            options = [f"--log-level={log_level}", f"--log-format={log_format}"]
            options += [f"--log-errors={log_errors}"] * (log_errors is not None)
            options += ["--drain"] * drain + ["--report-durations"] * (durations is not None)
            supervisor = Supervisor(
                [target, *options],
                {f"MONGOQ_{name.upper()}": value for name, value in settings.items() if value},
                processes=processes,
                drain=drain,
                watcher=FileWatcher(Path.cwd()) if reload else None,
                durations=durations,
            )
            read: Callable[[], BrokerReading] | None = None
            if http is not None and metrics == "all":
                try:  # the supervisor imports no module of the user, and so knows no broker
                    read = stack.enter_context(ServerReader(find_place(**settings))).read
                except click.UsageError:
                    logger.warning("/metrics is without the state of the queues: set MONGOQ_URI, to find them")
            render = None if durations is None else metrics_renderer(durations, read)
            stack.enter_context(serve(http, supervisor.health, render))
            click.get_current_context().exit(supervisor.run())
        process = WorkerProcess(
            target,
            lambda: {"timeout": TIMEOUT_SECONDS, **find_place(**settings)},
            drain=drain,
            link=link,
            durations=durations,
            log_errors=log_errors,
        )
        read = process.read_broker if metrics == "all" else None
        render = None if http is None or durations is None else metrics_renderer(durations, read)
        stack.enter_context(serve(http, process.health, render))
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
        explained = explain(error)
        if explained is None:
            logger.exception("the worker ends by an error")
        else:  # a sentence that says what to do, without values of documents; or the traceback of the user
            logger.error("%s", explained[0])  # noqa: TRY400
        click.get_current_context().exit(OPERATION_FAILED if explained is None else explained[1])
