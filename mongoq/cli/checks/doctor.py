"""Command ``mongoq doctor``: one line for each check, which is ok or says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache, partial
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
)
from mongoq.core.coordination.heartbeats import WorkerRecord
from mongoq.core.history.query import BoundedCount
from mongoq.core.insight import QueueInsight
from mongoq.data.encoding.extended_json import duration_text
from mongoq.data.schedule.definition import ScheduleRecord
from mongoq.drivers.errors import UNAUTHORIZED_CODE, describe_missing_right
from mongoq.errors import CollectionUnsuitable, MongoqError
from mongoq.sync import Broker

MAX_AGE = "1h"
"""Time that the first due item of a queue may wait, by default."""
SECOND = "%Y-%m-%d %H:%M:%S"
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
def doctor(*, max_age: timedelta, role: str, spark: bool, output: Output, **place: Any) -> None:
    """Check server, collection and queues, and say what to do.

    Each line begins with ok, with problem, with warning for what works with limits, or with unknown where the user may
    not read what the check needs. Exits with 1 if there is a problem. It changes nothing.
    """
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
        tell("collection" if isinstance(error, CollectionUnsuitable) else "reachable", Finding("problem", str(error)))
    if spark:
        tell("Spark", _check_spark())
    if found:
        click.get_current_context().exit(OPERATION_FAILED)


def _examine(broker: Broker, max_age: timedelta, role: str) -> Iterator[tuple[str, Finding]]:
    """Run all checks of a server and its queues, each by itself: one that cannot be made does not end the others."""
    server, inspection = Server(broker), broker.inspect()
    workers = cache(inspection.workers)  # two checks ask, and an error is each one's own
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
        "workers": lambda: check_workers(workers()),
        "long runs": lambda: check_long_runs(workers()),
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
            finding = Finding("unknown", f"the reply of the server cannot be read: {type(error).__name__}")
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
        return Finding("unknown", f"the server {describe_missing_right(error)}")
    return Finding("unknown", f"the server refused the command: code {error.code}")


def _check_spark() -> Finding:
    from mongoq import spark
    from mongoq.spark.versions import pyspark_version

    try:
        spark.check()
    except spark.SparkUnavailable as error:
        return Finding("problem", str(error))
    return Finding("ok", f"PySpark {pyspark_version() or ''}, Java {spark.java_version()}")


# --- queues and workers ----------------------------------------------------------------------------


def check_stored(problems: Sequence[str]) -> Finding:
    """Check that settings of queues and bindings of topics can be used, as other programs may have stored them."""
    return Finding("problem", "; ".join(problems)) if problems else Finding("ok", "all can be used")


def check_workers(workers: Sequence[WorkerRecord]) -> Finding:
    """Check that the workers that have not ended send heartbeats."""
    gone = [f"{worker.name} since {worker.seen:{SECOND}} UTC" for worker in workers if not worker.alive]
    live = len(workers) - len(gone)
    advice = (
        "see why they died; their items come back when their leases end, and a live worker removes their records after "
        "ten minutes"
    )
    return _judge(gone, "gone without an end are {}", advice, fine=f"{live} {'works' if live == 1 else 'work'}")


def check_long_runs(workers: Sequence[WorkerRecord]) -> Finding:
    """Check that no handler hangs in a worker that lives: it extends the leases of its items for ever."""
    runs = [
        f"{worker.name} has run an item of {queue} for {duration_text(length)}"
        for worker in workers
        if worker.alive
        for queue, length in worker.overdue.items()
    ]
    fine = "no handler has run for longer than its max_time, by default five minutes"
    advice = "the log of the worker shows where it is; max_time=, with on_timeout=, gives such a run up"
    return _judge(runs, "{}", advice, fine=fine, state="warning")


def check_consumers(queues: Sequence[QueueInsight]) -> Finding:
    """Check that queues with due items have a worker; programs that call ``reserve`` are not seen."""
    dead = {queue.dead_queue for queue in queues}
    forgotten = [
        f"{queue.name} ({_age(queue)})"
        for queue in queues
        if not (queue.consumers or queue.paused or queue.name in dead) and (queue.oldest_age or UNATTENDED) > UNATTENDED
    ]
    fine = "queues with due items have workers, or are not a minute behind"
    advice = "start a worker for them, such as mongoq worker app:worker"
    return _judge(forgotten, "no worker takes the due items of {}", advice, fine=fine)


def check_paused(queues: Sequence[QueueInsight]) -> Finding:
    """Check that no items wait in paused queues: a pause is deliberate, but it may have been forgotten."""
    waiting = {queue.name: queue.ready + queue.scheduled + queue.expired for queue in queues if queue.paused}
    names = [f"{name} ({amount(number)})" for name, number in waiting.items() if number.number]
    advice, fine = "mongoq resume QUEUE ends a pause", "no items wait in paused queues"
    return _judge(names, "items wait in {}", advice, fine=fine, state="warning")


def check_oldest(queues: Sequence[QueueInsight], max_age: timedelta) -> Finding:
    """Check for how long the first due items wait; dead letters wait for people."""
    dead = {queue.dead_queue for queue in queues}
    aged = [queue for queue in queues if queue.oldest_age is not None and queue.name not in dead]
    aged.sort(key=lambda queue: queue.oldest_age or timedelta(), reverse=True)
    late = []
    for queue in aged:
        reason = "paused" if queue.paused else queue.limits.reason if queue.limits else None
        if queue.oldest_age is not None and queue.oldest_age > max_age:
            late.append(f"{queue.name} ({_age(queue)}{f', {reason}' if reason else ''})")
    fine = f"the first one waits for {_age(aged[0])}, in queue {aged[0].name}" if aged else "no item is due"
    return _judge(late, "due items wait in {}", "see whether the workers fail, or are too few", fine=fine)


def check_sequences(stuck: Mapping[str, BoundedCount]) -> Finding:
    """Check that each sequence has its first item, and no more: others wait for ever, or run beside each other."""
    names = [f"{name} ({amount(number, 'sequence')})" for name, number in stuck.items() if number.number]
    is_all = all(number.exact for number in stuck.values())
    fine = "each is in order" if is_all else "the first 1,000 of each queue are in order"
    advice = "another program may have deleted documents; mongoq repair-sequences QUEUE lets them go on in order"
    problem = "sequences are blocked, or out of order, in {}"
    return _judge(names, problem, advice, fine=fine if stuck else "no queue has any")


def check_held(held: Mapping[str, BoundedCount]) -> Finding:
    """Check that no dead letter holds a sequence: its other items wait until a person decides."""
    texts = [f"{amount(number, 'sequence')} of {name}" for name, number in held.items()]
    verb = "is" if [number.number for number in held.values()] == [1] else "are"
    advice = "replay or remove them: mongoq dead list QUEUE shows them, mongoq dead replay QUEUE sends them back"
    return _judge(texts, f"{{}} {verb} held by dead letters", advice, fine="no dead letter holds any", state="warning")


def check_schedules(schedules: Sequence[ScheduleRecord]) -> Finding:
    """Check that schedules tick in time, can be read, and belong to running code."""
    broken = [f"{schedule.name} ({schedule.trouble})" for schedule in schedules if schedule.trouble is not None]
    late = [f"{each.name} ({timedelta(seconds=int(each.late.total_seconds()))})" for each in schedules if each.late]
    unseen = [f"{schedule.name} since {schedule.seen:{SECOND}} UTC" for schedule in schedules if schedule.unseen]
    if broken:
        return _judge(broken, "unusable are {}", "define them again, or mongoq schedules remove NAME")
    if late:
        advice = "start a worker, with the function of the schedule if one makes its payload, and the extra schedules"
        return _judge(late, "no worker has made the ticks of {}", advice)
    fine = f"{len(schedules)} in time" if schedules else "there are none"
    advice = "mongoq schedules prune deletes them"
    return _judge(unseen, "no running code has {}", advice, fine=fine, state="warning")


def _age(queue: QueueInsight) -> str:
    age = queue.oldest_age or timedelta()
    return str(timedelta(seconds=int(age.total_seconds())))


def _judge(names: Sequence[str], sentence: str, advice: str, *, fine: str = "", state: str = "problem") -> Finding:
    """Return a finding with the first of these names in its sentence; without any name, all is fine."""
    if not names:
        return Finding("ok", fine)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return Finding(state, sentence.format(", ".join(names[:SHOWN]) + more), advice)
