"""Command ``mongoq doctor``: one line for each check, which is ok or says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

import click
from pymongo.errors import OperationFailure

from mongoq.cli.base.connection import connect, with_connection, with_json
from mongoq.cli.base.durations import DURATION
from mongoq.cli.base.errors import OPERATION_FAILED
from mongoq.cli.base.output import Output
from mongoq.cli.checks.queue_checks import (
    check_consumers,
    check_held,
    check_long_runs,
    check_oldest,
    check_paused,
    check_schedules,
    check_sequences,
    check_stored,
    check_workers,
)
from mongoq.cli.checks.role import ROLES
from mongoq.cli.checks.server_checks import (
    Finding,
    Server,
    check_cache,
    check_clock,
    check_history_window,
    check_index_use,
    check_indexes,
    check_replica_set,
    check_reply,
    check_rights,
    check_schema,
    check_version,
    check_write_concern,
)
from mongoq.drivers.errors import UNAUTHORIZED_CODE, describe_missing_right
from mongoq.errors import CollectionUnsuitable, MongoqError
from mongoq.protocol_threads.insight import count_held, find_stuck, find_unusable, read_queues
from mongoq.sync import Broker

MAX_AGE = "1h"
"""Time that the first due item of a queue may wait, by default."""
SERVER_CHECKS: dict[str, Callable[[Server], Finding]] = {
    "reachable": check_reply,
    "server version": check_version,
    "replica set": check_replica_set,
    "write concern": check_write_concern,
    "rights": check_rights,
    "schema version": check_schema,
    "indexes": check_indexes,
    "use of the index": check_index_use,
    "clock": check_clock,
    "history window": check_history_window,
    "cache": check_cache,
}


@click.command()
@with_connection
@with_json
@click.option(
    "--max-age",
    type=DURATION,
    default=MAX_AGE,
    show_default=True,
    help="Time that the first due item of a queue may wait, such as 15m.",
)
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="worker",
    show_default=True,
    help="Role whose rights the user is to have.",
)
@click.option("--spark", is_flag=True, help="Check Spark and Java too.")
@click.pass_context
def doctor(
    context: click.Context,
    uri: str | None,
    database: str | None,
    collection: str | None,
    *,
    max_age: timedelta,
    role: str,
    spark: bool,
    as_json: bool,
) -> None:
    """Check server, collection and queues, and say what to do.

    Each line begins with ok, with problem, with warning for what works with limits, or with unknown where the user may
    not read what the check needs. Exits with 1 if there is a problem. It changes nothing.
    """
    output = Output(as_json=as_json)
    found = 0
    try:
        with connect(uri, database, collection) as broker:
            for finding in _examine(broker, max_age, role):
                found += finding.is_problem
                _print(output, finding)
    except MongoqError as error:
        found += 1
        check = "collection" if isinstance(error, CollectionUnsuitable) else "reachable"
        _print(output, Finding.problem(str(error)).named(check))
    if spark:
        finding = _check_spark().named("Spark")
        found += finding.is_problem
        _print(output, finding)
    if found:
        context.exit(OPERATION_FAILED)


def _examine(broker: Broker, max_age: timedelta, role: str) -> Iterator[Finding]:
    """Run all checks of a server and its queues, each by itself: one that cannot be made does not end the others."""
    server = Server(broker)
    checks: dict[str, Callable[[Server], Finding]] = {**SERVER_CHECKS, "rights": partial(check_rights, role=role)}
    for name, check in checks.items():
        yield _run(partial(check, server)).named(name)
    yield _run(lambda: check_stored(broker._run(find_unusable))).named("stored settings")
    yield _run(lambda: check_workers(broker.workers())).named("workers")
    yield _run(lambda: check_long_runs(broker.workers())).named("long runs")
    yield _run(lambda: check_schedules(broker.schedules())).named("schedules")
    yield _run(lambda: check_sequences(broker._run(find_stuck))).named("sequences")
    yield _run(lambda: check_held(broker._run(count_held))).named("held sequences")
    try:
        queues = broker._run(read_queues)
    except OperationFailure as error:
        yield _describe_refusal(error).named("queues")
        return
    yield check_consumers(queues).named("consumers")
    yield check_paused(queues).named("paused")
    yield check_oldest(queues, max_age).named("oldest item")


def _run(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except OperationFailure as error:
        return _describe_refusal(error)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        # A program that stands in for MongoDB answers in a form of its own.
        return Finding.unknown(f"the reply of the server cannot be read: {type(error).__name__}")


def _describe_refusal(error: OperationFailure) -> Finding:
    """Return that a check could not be made; that says nothing about what it checks."""
    if error.code == UNAUTHORIZED_CODE:
        return Finding.unknown(f"the server {describe_missing_right(error)}")
    return Finding.unknown(f"the server refused the command: code {error.code}")


def _check_spark() -> Finding:
    from mongoq import spark
    from mongoq.spark.versions import pyspark_version

    try:
        spark.check()
    except spark.SparkUnavailable as error:
        return Finding.problem(str(error))
    return Finding.fine(f"PySpark {pyspark_version() or ''}, Java {spark.java_version()}")


def _print(output: Output, finding: Finding) -> None:
    if output.as_json:
        output.document(finding.to_document())
    else:
        advice = f": {finding.advice}" if finding.advice else ""
        output.line(f"{finding.state:<8} {finding.check:<17} {finding.detail}{advice}")
