"""Command ``workers``: the workers that have sent heartbeats."""

from __future__ import annotations

from typing import Any

import click

from mongoq.cli.base.connection import with_broker
from mongoq.cli.base.output import Output
from mongoq.model.encoding.extended_json import duration_text
from mongoq.protocol.coordination.heartbeats import WorkerRecord
from mongoq.sync import Broker

COLUMNS = ("worker", "alive", "started", "seen", "held", "queues")


@click.command()
@with_broker
def workers(broker: Broker, output: Output) -> None:
    """Show the workers, their last heartbeats, and how many items they hold of each queue.

    A worker that ended regularly is not listed. One that was killed is listed for some minutes, as not alive.
    """
    rows = [record.to_document() if output.as_json else _row(record) for record in broker.workers()]
    output.table(COLUMNS, rows, empty=f"there are no workers in {broker.namespace}")


def _row(record: WorkerRecord) -> dict[str, Any]:
    return {
        "worker": record.name,
        "alive": record.alive,
        "started": record.started,
        "seen": record.seen,
        "held": sum(record.queues.values()),
        "queues": ", ".join(
            f"{queue} ({held:,}{_describe_run(record, queue)})" for queue, held in record.queues.items()
        ),
    }


def _describe_run(record: WorkerRecord, queue: str) -> str:
    """Return for how long the longest run of a queue goes on, if that is too long."""
    return f", one for {duration_text(record.overdue[queue])}" if queue in record.overdue else ""
