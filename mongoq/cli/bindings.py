"""Command ``bindings``: the queues that are bound to each topic."""

from __future__ import annotations

from typing import Any

import click

from mongoq.cli.connection import with_broker
from mongoq.cli.output import Output
from mongoq.sync import Broker


@click.command()
@with_broker
def bindings(broker: Broker, output: Output) -> None:
    """Show the topics, and the queues that get a copy of each item that is pushed to them."""
    bound = sorted(broker.bindings().items())
    rows: list[dict[str, Any]] = [{"topic": topic, "queues": list(queues)} for topic, queues in bound]
    if not output.as_json:
        rows = [{"topic": topic, "queue": queue} for topic, queues in bound for queue in queues]
    output.table(("topic", "queue"), rows, empty="no queue is bound to a topic")
