"""Command ``mongoq doctor``: one line for each check, which is ok or says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import click
from pymongo.errors import OperationFailure

from mongoq.cli.base.arguments import DURATION
from mongoq.cli.base.changes import amount
from mongoq.cli.base.connection import connect, with_connection, with_json
from mongoq.cli.base.errors import OPERATION_FAILED
from mongoq.cli.base.output import Output
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
    fine,
    problem,
    unknown,
    warning,
)
from mongoq.drivers.errors import UNAUTHORIZED_CODE, describe_missing_right
from mongoq.errors import CollectionUnsuitable, MongoqError
from mongoq.model.encoding.extended_json import duration_text
from mongoq.model.schedule.definition import ScheduleRecord
from mongoq.protocol.coordination.heartbeats import WorkerRecord
from mongoq.protocol.history.query import BoundedCount
from mongoq.protocol.insight import QueueInsight
from mongoq.sync import Broker

MAX_AGE = "1h"
"""Time that the first due item of a queue may wait, by default."""
SHOWN = 5
"""Queues or workers that a line names, at most."""
UNATTENDED = timedelta(minutes=1)
"""Time after which a due item of a queue without consumer counts as forgotten."""


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
def doctor(*, max_age: timedelta, role: str, spark: bool, as_json: bool, **place: Any) -> None:
    """Check server, collection and queues, and say what to do.

    Each line begins with ok, with problem, with warning for what works with limits, or with unknown where the user may
    not read what the check needs. Exits with 1 if there is a problem. It changes nothing.
    """
    output = Output(as_json=as_json)
    found = 0

    def tell(check: str, finding: Finding) -> None:
        nonlocal found
        found += finding.state == "problem"
        advice = f": {finding.advice}" if finding.advice else ""
        text = f"{finding.state:<8} {check:<17} {finding.detail}{advice}"
        output.result(
            {"check": check, "state": finding.state, "detail": finding.detail, "advice": finding.advice}, text
        )

    try:
        with connect(**place) as broker:
            for check, finding in _examine(broker, max_age, role):
                tell(check, finding)
    except MongoqError as error:
        tell("collection" if isinstance(error, CollectionUnsuitable) else "reachable", problem(str(error)))
    if spark:
        tell("Spark", _check_spark())
    if found:
        click.get_current_context().exit(OPERATION_FAILED)


def _examine(broker: Broker, max_age: timedelta, role: str) -> Iterator[tuple[str, Finding]]:
    """Run all checks of a server and its queues, each by itself: one that cannot be made does not end the others."""
    server, inspection = Server(broker), broker.inspect()
    checks: dict[str, Callable[[], Finding]] = {
        "reachable": partial(check_reply, server),
        "server version": partial(check_version, server),
        "replica set": partial(check_replica_set, server),
        "write concern": partial(check_write_concern, server),
        "rights": partial(check_rights, server, role=role),
        "schema version": partial(check_schema, server),
        "indexes": partial(check_indexes, server),
        "use of the index": partial(check_index_use, server),
        "clock": partial(check_clock, server),
        "history window": partial(check_history_window, server),
        "cache": partial(check_cache, server),
        "stored settings": lambda: check_stored(inspection.unusable()),
        "workers": lambda: check_workers(inspection.workers()),
        "long runs": lambda: check_long_runs(inspection.workers()),
        "schedules": lambda: check_schedules(inspection.schedules()),
        "sequences": lambda: check_sequences(inspection.stuck_sequences()),
        "held sequences": lambda: check_held(inspection.held_sequences()),
    }
    for name, check in checks.items():
        try:
            finding = check()
        except OperationFailure as error:
            finding = _describe_refusal(error)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # A program that stands in for MongoDB answers in a form of its own.
            finding = unknown(f"the reply of the server cannot be read: {type(error).__name__}")
        yield name, finding
    try:
        queues = inspection.queues()
    except OperationFailure as error:
        yield "queues", _describe_refusal(error)
        return
    yield "consumers", check_consumers(queues)
    yield "paused", check_paused(queues)
    yield "oldest item", check_oldest(queues, max_age)


def _describe_refusal(error: OperationFailure) -> Finding:
    """Return that a check could not be made; that says nothing about what it checks."""
    if error.code == UNAUTHORIZED_CODE:
        return unknown(f"the server {describe_missing_right(error)}")
    return unknown(f"the server refused the command: code {error.code}")


def _check_spark() -> Finding:
    from mongoq import spark
    from mongoq.spark.versions import pyspark_version

    try:
        spark.check()
    except spark.SparkUnavailable as error:
        return problem(str(error))
    return fine(f"PySpark {pyspark_version() or ''}, Java {spark.java_version()}")


# --- queues and workers ----------------------------------------------------------------------------


def check_stored(problems: Sequence[str]) -> Finding:
    """Check that settings of queues and bindings of topics can be used, as other programs may have stored them."""
    return problem("; ".join(problems)) if problems else fine("all can be used")


def check_workers(workers: Sequence[WorkerRecord]) -> Finding:
    """Check that the workers that have not ended send heartbeats."""
    gone = [worker for worker in workers if not worker.alive]
    live = len(workers) - len(gone)
    if not gone:
        return fine(f"{live} {'works' if live == 1 else 'work'}")
    names = _list(f"{worker.name} since {worker.seen:%Y-%m-%d %H:%M:%S} UTC" for worker in gone)
    return problem(
        f"gone without an end are {names}",
        "see why they died; their items come back when their leases end, and a live worker removes their records "
        "after ten minutes",
    )


def check_long_runs(workers: Sequence[WorkerRecord]) -> Finding:
    """Check that no handler hangs in a worker that lives: it extends the leases of its items for ever."""
    runs = [
        f"{worker.name} has run an item of {queue} for {duration_text(length)}"
        for worker in workers
        if worker.alive
        for queue, length in worker.overdue.items()
    ]
    if not runs:
        return fine("no handler has run for longer than its max_time, by default five minutes")
    advice = "the log of the worker shows where it is; max_time=, with on_timeout=, gives such a run up"
    return warning(_list(runs), advice)


def check_consumers(queues: Sequence[QueueInsight]) -> Finding:
    """Check that queues with due items have a worker; programs that call ``reserve`` are not seen."""
    dead = {queue.dead_queue for queue in queues}
    forgotten = [
        queue
        for queue in queues
        if queue.consumers == 0
        and not queue.paused
        and queue.name not in dead
        and queue.oldest_age is not None
        and queue.oldest_age > UNATTENDED
    ]
    if not forgotten:
        return fine("queues with due items have workers, or are not a minute behind")
    names = _list(f"{queue.name} ({_age(queue)})" for queue in forgotten)
    advice = "start a worker for them, such as mongoq worker app:worker"
    return problem(f"no worker takes the due items of {names}", advice)


def check_paused(queues: Sequence[QueueInsight]) -> Finding:
    """Check that no items wait in paused queues: a pause is deliberate, but it may have been forgotten."""
    waiting = {queue.name: queue.ready + queue.scheduled + queue.expired for queue in queues if queue.paused}
    names = _list(f"{name} ({amount(number)})" for name, number in waiting.items() if number.number)
    if not names:
        return fine("no items wait in paused queues")
    return warning(f"items wait in {names}", "mongoq resume QUEUE ends a pause")


def check_oldest(queues: Sequence[QueueInsight], max_age: timedelta) -> Finding:
    """Check for how long the first due items wait; dead letters wait for people."""
    dead = {queue.dead_queue for queue in queues}
    aged = [queue for queue in queues if queue.oldest_age is not None and queue.name not in dead]
    if not aged:
        return fine("no item is due")
    aged.sort(key=lambda queue: queue.oldest_age or timedelta(), reverse=True)
    late = [queue for queue in aged if (queue.oldest_age or timedelta()) > max_age]
    if not late:
        return fine(f"the first one waits for {_age(aged[0])}, in queue {aged[0].name}")
    reasons = ["paused" if queue.paused else queue.limits.reason if queue.limits else None for queue in late]
    whys = [f", {reason}" if reason else "" for reason in reasons]
    names = _list(f"{queue.name} ({_age(queue)}{why})" for queue, why in zip(late, whys, strict=True))
    return problem(f"due items wait in {names}", "see whether the workers fail, or are too few")


def check_sequences(stuck: Mapping[str, BoundedCount]) -> Finding:
    """Check that each sequence has its first item, and no more: others wait for ever, or run beside each other."""
    names = _list(f"{name} ({amount(number, 'sequence')})" for name, number in stuck.items() if number.number)
    if names:
        advice = "another program may have deleted documents; mongoq repair-sequences QUEUE lets them go on in order"
        return problem(f"sequences are blocked, or out of order, in {names}", advice)
    if not stuck:
        return fine("no queue has any")
    is_all = all(number.exact for number in stuck.values())
    return fine("each is in order" if is_all else "the first 1,000 of each queue are in order")


def check_held(held: Mapping[str, BoundedCount]) -> Finding:
    """Check that no dead letter holds a sequence: its other items wait until a person decides."""
    texts = [f"{amount(number, 'sequence')} of {name}" for name, number in held.items()]
    if not texts:
        return fine("no dead letter holds any")
    is_one = len(held) == 1 and next(iter(held.values())).number == 1
    advice = "replay or remove them: mongoq dead list QUEUE shows them, mongoq dead replay QUEUE sends them back"
    return warning(f"{_list(texts)} {'is' if is_one else 'are'} held by dead letters", advice)


def check_schedules(schedules: Sequence[ScheduleRecord]) -> Finding:
    """Check that schedules tick in time, can be read, and belong to running code."""
    broken = [schedule for schedule in schedules if schedule.trouble is not None]
    if broken:
        names = _list(f"{schedule.name} ({schedule.trouble})" for schedule in broken)
        return problem(f"unusable are {names}", "define them again, or mongoq schedules remove NAME")
    late = [schedule for schedule in schedules if schedule.late]
    if late:
        names = _list(f"{each.name} ({timedelta(seconds=int(each.late.total_seconds()))})" for each in late)
        advice = "start a worker, with the function of the schedule if one makes its payload, and the extra schedules"
        return problem(f"no worker has made the ticks of {names}", advice)
    unseen = [schedule for schedule in schedules if schedule.unseen]
    if unseen:
        names = _list(f"{schedule.name} since {schedule.seen:%Y-%m-%d %H:%M:%S} UTC" for schedule in unseen)
        return warning(f"no running code has {names}", "mongoq schedules prune deletes them")
    return fine(f"{len(schedules)} in time" if schedules else "there are none")


def _age(queue: QueueInsight) -> str:
    age = queue.oldest_age or timedelta()
    return str(timedelta(seconds=int(age.total_seconds())))


def _list(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more
