"""Commands about whole queues, and who consumes them: ``queues``, ``stats``, ``settings``, ``limits`` and others."""

from __future__ import annotations

import shlex
from datetime import timedelta
from typing import Any

import click

from mongoq import BoundedCount, QueueInsight
from mongoq.aio.inspection import BUDGET
from mongoq.cli.base.arguments import COUNT, queue_argument, queues_argument
from mongoq.cli.base.connection import with_broker
from mongoq.cli.base.output import Output, cell
from mongoq.data.encoding.extended_json import duration_text
from mongoq.data.limits import describe_start
from mongoq.data.settings import SETTINGS, to_stored
from mongoq.sync import Broker

COLUMNS = (
    *("queue", "ready", "scheduled", "reserved", "expired", "blocked"),
    *("oldest", "rate", "paused", "consumers", "dead"),
)
"""Columns of the table of queues."""
OPTIONAL = frozenset({"blocked", "paused"})
"""Columns that are left out if they are empty."""
RIGHT = frozenset(COLUMNS) - {"queue", "paused"}
NONE_TEXTS = {
    "history": "none: processed items are deleted",
    "max_retries": "no limit",
    "max_running": "no limit",
    "rate": "no limit",
    "burst": "as the rate",
}
"""Texts of settings without a value."""
WORKER_COLUMNS = ("worker", "alive", "started", "seen", "held", "queues")
COUNTED = ("ready", "scheduled", "reserved", "expired")


@click.command()
@queues_argument
@click.option("--budget", type=COUNT, default=BUDGET, help="Items to count, in all.")
@with_broker
def queues(names: tuple[str, ...], budget: int, broker: Broker, output: Output) -> None:
    """Show all queues, or the named ones: items by state, oldest age, rate, consumers.

    "> 1,000" means more than 1,000: counting ended there. "?" means that counting ended before such an item was met.
    The age is that of the first item that is due. The rate is the number of items that the history got in the last
    minute; it is empty for a queue without history.
    """
    found = broker.inspect().queues(names or None, budget=budget)
    rows = [queue.to_document() if output.as_json else queue_row(queue) for queue in found]
    output.table(COLUMNS, rows, empty=no_queues(broker), right=RIGHT, optional=OPTIONAL)
    # Dead queues have no dead queue: their items are not processed.
    unrated = [
        queue.name for queue, row in zip(found, rows, strict=True) if row.get("rate", "") is None and queue.dead_queue
    ]
    if unrated:
        more = f", as {len(unrated) - 1:,} more" if unrated[1:] else ""
        command = f"mongoq configure {shlex.quote(unrated[0])} --history 7d"
        output.note(f"queue {unrated[0]!r} keeps no history{more}, and so has no rate; {command} turns both on")


def no_queues(broker: Broker) -> str:
    """Return what is said instead of an empty table: the name of the collection may be wrong."""
    return f"there are no queues in {broker.namespace}"


def queue_row(queue: QueueInsight, *, rate: str | None = None) -> dict[str, Any]:
    """Return a queue as a row of the table; without a measured rate it is the number of recent items in history."""
    counts = {state: str(getattr(queue, state)) for state in COUNTED}
    recent = str(queue.recent) if queue.keeps_history or queue.recent.number else None
    return {
        "queue": queue.name,
        **counts,
        "blocked": None if queue.blocked == BoundedCount() else str(queue.blocked),
        "oldest": queue.oldest_age,
        "rate": recent if rate is None else rate,
        "paused": "paused" if queue.paused else None,
        "consumers": str(queue.consumers),
        "dead": None if queue.dead_queue is None else str(queue.dead),
    }


@click.command()
@queues_argument
@with_broker
def stats(names: tuple[str, ...], broker: Broker, output: Output) -> None:
    """Show the numbers of pushes, reservations, commits and other events of all queues, or of the named ones.

    They count from the time when the queue was made. Every process adds its counts every five seconds. The counts of an
    empty queue are forgotten after 30 days.
    """
    found = broker.inspect().events(names or None)
    rows = [{"queue": name, **events} for name, events in sorted(found.items())]
    columns = ("queue", *next(iter(found.values()), {}))
    output.table(columns, rows, empty=f"nothing was counted yet in {broker.namespace}")


@click.command()
@queue_argument
@with_broker
def settings(queue: str, broker: Broker, output: Output) -> None:
    """Show the settings of a queue, and which of them are stored; the others are defaults."""
    read = broker.inspect().settings(queue)
    values = {name: getattr(read.settings, name) for name in SETTINGS}
    if output.as_json:
        stored = {name: to_stored(value) for name, value in values.items()}
        output.document({"queue": queue, **stored, "paused": read.paused, "stored": sorted(read.stored)})
        return
    rows: list[dict[str, Any]] = [
        {
            "setting": name.replace("_", "-"),
            "value": NONE_TEXTS.get(name, "none")
            if value is None
            else duration_text(value)
            if isinstance(value, timedelta)
            else str(value),
            "from": "stored" if name in read.stored else "default",
        }
        for name, value in values.items()
    ]
    rows.append({"setting": "paused", "value": cell(read.paused), "from": None})
    output.table(("setting", "value", "from"), rows, empty="")


@click.command()
@queue_argument
@with_broker
def limits(queue: str, broker: Broker, output: Output) -> None:
    """Show the limits of a queue, and what is used of them: why due items wait.

    A worker with permits may run so many items at a time; one with none asks for some.
    """
    [state] = broker.inspect().queues([queue], budget=1)  # refuses a queue that no caller has used
    found = broker.queue(queue).limits()
    if output.as_json:
        output.document({"queue": queue, **found.to_document()})
        return
    if found.max_running is None and found.rate is None:
        advice = f"mongoq configure {shlex.quote(queue)} --max-running 8 --rate 100/m"
        output.line(f"queue {queue!r} has no limits; {advice} sets some")
        return
    output.line(describe_start(found, paused=state.paused, consumers=state.consumers))
    rows: list[dict[str, Any]] = [
        {
            "limit": "max-running",
            "value": "no limit" if found.max_running is None else str(found.max_running),
            "in use": None if found.max_running is None else str(found.permits),
        },
        {"limit": "rate", "value": found.rate or "no limit", "next start": found.next_start},
    ]
    output.table(("limit", "value", "in use", "next start"), rows, empty="", optional={"in use", "next start"})
    holders: list[dict[str, Any]] = [
        {"worker": holder.by, "permits": holder.number, "wanted": holder.wanted, "until": holder.until}
        for holder in found.holders
    ]
    if holders:
        output.line("")
        output.table(("worker", "permits", "wanted", "until"), holders, empty="")


@click.command()
@with_broker
def bindings(broker: Broker, output: Output) -> None:
    """Show the topics, and the queues that get a copy of each item that is pushed to them."""
    bound = sorted(broker.bindings().items())
    rows: list[dict[str, Any]] = [{"topic": topic, "queues": list(queues)} for topic, queues in bound]
    if not output.as_json:
        rows = [{"topic": topic, "queue": queue} for topic, queues in bound for queue in queues]
    output.table(("topic", "queue"), rows, empty=f"no queue in {broker.namespace} is bound to a topic")


@click.command()
@with_broker
def workers(broker: Broker, output: Output) -> None:
    """Show the workers, their last heartbeats, and how many items they hold of each queue.

    A worker that ended regularly is not listed. One that was killed is listed for some minutes, as not alive.
    """
    rows: list[dict[str, Any]] = []
    for record in broker.workers():
        if output.as_json:
            rows.append(record.to_document())
            continue
        held = []
        for queue, number in record.queues.items():
            overdue = record.overdue.get(queue)
            held.append(f"{queue} ({number:,}{f', one for {duration_text(overdue)}' if overdue else ''})")
        row = {name: getattr(record, name) for name in ("alive", "started", "seen")}
        queues = ", ".join(held)
        rows.append({"worker": record.name, **row, "held": sum(record.queues.values()), "queues": queues})
    output.table(WORKER_COLUMNS, rows, empty=f"there are no workers in {broker.namespace}")
