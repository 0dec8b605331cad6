"""Checks of ``mongoq doctor`` for queues and workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from mongoq.cli.base.amounts import amount
from mongoq.cli.checks.server_checks import Finding
from mongoq.model.encoding.extended_json import duration_text
from mongoq.model.schedule.definition import ScheduleRecord
from mongoq.protocol.coordination.heartbeats import WorkerRecord
from mongoq.protocol.history.query import BoundedCount
from mongoq.protocol.insight import QueueInsight

SHOWN = 5
"""Queues or workers that a line names, at most."""
UNATTENDED = timedelta(minutes=1)
"""Time after which a due item of a queue without consumer counts as forgotten."""


def check_stored(problems: Sequence[str]) -> Finding:
    """Check that settings of queues and bindings of topics can be used, as other programs may have stored them."""
    return Finding.problem("; ".join(problems)) if problems else Finding.fine("all can be used")


def check_workers(workers: Sequence[WorkerRecord]) -> Finding:
    """Check that the workers that have not ended send heartbeats."""
    gone = [worker for worker in workers if not worker.alive]
    live = len(workers) - len(gone)
    if not gone:
        return Finding.fine(f"{live} {'works' if live == 1 else 'work'}")
    names = _list(f"{worker.name} since {worker.seen:%Y-%m-%d %H:%M:%S} UTC" for worker in gone)
    return Finding.problem(
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
        return Finding.fine("no handler has run for longer than its max_time, by default five minutes")
    advice = "the log of the worker shows where it is; max_time=, with on_timeout=, gives such a run up"
    return Finding.warning(_list(runs), advice)


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
        return Finding.fine("queues with due items have workers, or are not a minute behind")
    names = _list(f"{queue.name} ({_age(queue)})" for queue in forgotten)
    advice = "start a worker for them, such as mongoq worker app:worker"
    return Finding.problem(f"no worker takes the due items of {names}", advice)


def check_paused(queues: Sequence[QueueInsight]) -> Finding:
    """Check that no items wait in paused queues: a pause is deliberate, but it may have been forgotten."""
    waiting = {queue.name: queue.ready + queue.scheduled + queue.expired for queue in queues if queue.paused}
    names = _list(f"{name} ({amount(number)})" for name, number in waiting.items() if number.number)
    if not names:
        return Finding.fine("no items wait in paused queues")
    return Finding.warning(f"items wait in {names}", "mongoq resume QUEUE ends a pause")


def check_oldest(queues: Sequence[QueueInsight], max_age: timedelta) -> Finding:
    """Check for how long the first due items wait; dead letters wait for people."""
    dead = {queue.dead_queue for queue in queues}
    aged = [queue for queue in queues if queue.oldest_age is not None and queue.name not in dead]
    if not aged:
        return Finding.fine("no item is due")
    aged.sort(key=lambda queue: queue.oldest_age or timedelta(), reverse=True)
    late = [queue for queue in aged if (queue.oldest_age or timedelta()) > max_age]
    if not late:
        return Finding.fine(f"the first one waits for {_age(aged[0])}, in queue {aged[0].name}")
    names = _list(f"{queue.name} ({_age(queue)}{_explain(queue)})" for queue in late)
    return Finding.problem(f"due items wait in {names}", "see whether the workers fail, or are too few")


def _explain(queue: QueueInsight) -> str:
    """Return why items wait, as far as the queue says so."""
    if queue.paused:
        return ", paused"
    reason = None if queue.limits is None else queue.limits.reason
    return "" if reason is None else f", {reason}"


def check_sequences(stuck: Mapping[str, BoundedCount]) -> Finding:
    """Check that each sequence has its first item, and no more: others wait for ever, or run beside each other."""
    names = _list(f"{name} ({amount(number, 'sequence')})" for name, number in stuck.items() if number.number)
    if names:
        advice = "another program may have deleted documents; mongoq repair-sequences QUEUE lets them go on in order"
        return Finding.problem(f"sequences are blocked, or out of order, in {names}", advice)
    if not stuck:
        return Finding.fine("no queue has any")
    is_all = all(number.exact for number in stuck.values())
    return Finding.fine("each is in order" if is_all else "the first 1,000 of each queue are in order")


def check_held(held: Mapping[str, BoundedCount]) -> Finding:
    """Check that no dead letter holds a sequence: its other items wait until a person decides."""
    texts = [f"{amount(number, 'sequence')} of {name}" for name, number in held.items()]
    if not texts:
        return Finding.fine("no dead letter holds any")
    is_one = len(held) == 1 and next(iter(held.values())).number == 1
    advice = "replay or remove them: mongoq dead list QUEUE shows them, mongoq dead replay QUEUE sends them back"
    return Finding.warning(f"{_list(texts)} {'is' if is_one else 'are'} held by dead letters", advice)


def check_schedules(schedules: Sequence[ScheduleRecord]) -> Finding:
    """Check that schedules tick in time, can be read, and belong to running code."""
    broken = [schedule for schedule in schedules if schedule.trouble is not None]
    if broken:
        names = _list(f"{schedule.name} ({schedule.trouble})" for schedule in broken)
        return Finding.problem(f"unusable are {names}", "define them again, or mongoq schedules remove NAME")
    late = [schedule for schedule in schedules if schedule.late]
    if late:
        names = _list(f"{each.name} ({timedelta(seconds=int(each.late.total_seconds()))})" for each in late)
        advice = "start a worker, with the function of the schedule if one makes its payload, and the extra schedules"
        return Finding.problem(f"no worker has made the ticks of {names}", advice)
    unseen = [schedule for schedule in schedules if schedule.unseen]
    if unseen:
        names = _list(f"{schedule.name} since {schedule.seen:%Y-%m-%d %H:%M:%S} UTC" for schedule in unseen)
        return Finding.warning(f"no running code has {names}", "mongoq schedules prune deletes them")
    return Finding.fine(f"{len(schedules)} in time" if schedules else "there are none")


def _age(queue: QueueInsight) -> str:
    age = queue.oldest_age or timedelta()
    return str(timedelta(seconds=int(age.total_seconds())))


def _list(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more
