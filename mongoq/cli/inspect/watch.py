"""Command ``watch``: the table of queues, read again and again."""

from __future__ import annotations

import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta

import click
from pymongo.errors import PyMongoError
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from mongoq import QueueInsight
from mongoq.cli.base.arguments import COUNT, queues_argument
from mongoq.cli.base.connection import TIMEOUT_SECONDS, with_broker
from mongoq.cli.base.output import Output, describe_driver_error, make_table, printable
from mongoq.cli.inspect.queues import COLUMNS, OPTIONAL, RIGHT, no_queues, queue_row
from mongoq.data.encoding.extended_json import time_text
from mongoq.drivers.errors import UNAUTHORIZED_CODE
from mongoq.sync import Broker

BUDGET = 20_000
"""Items that are counted each time, in all."""
RATE_WINDOW = timedelta(minutes=1)
"""Time over which rates are measured: processes add their counts every five seconds only."""
LEAVING = ("get", "commit", "move", "dead")
"""Events by which an item leaves a queue."""
CAPTION_LINES = 6
"""Lines of the terminal that the header and the caption need."""


@click.command()
@queues_argument
@click.option("--interval", type=click.FloatRange(0.2, 3600), default=2.0, help="Seconds.")
@click.option("--budget", type=COUNT, default=BUDGET, help="Items to count each time.")
@with_broker
def watch(names: tuple[str, ...], interval: float, budget: int, broker: Broker, output: Output) -> None:
    """Show all queues, or the named ones, again and again, until Ctrl-C.

    The rate is the number of items that left the queue a minute, measured over the last minute. With --json, or if the
    output is no terminal, each time is one line of JSON.
    """
    rates, queues, problem = Rates(), list[QueueInsight](), ""
    is_table = sys.stdout.isatty() and not output.as_json
    screen = Live(console=output.console, auto_refresh=False, vertical_overflow="crop") if is_table else None
    # A signal to end is as Ctrl-C; it would leave no cursor.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), screen or nullcontext():
        while True:
            try:
                queues, problem = broker.inspect(within=TIMEOUT_SECONDS).queues(names or None, budget=budget), ""
                rates.add(queues)
            except PyMongoError as error:
                if getattr(error, "code", None) == UNAUTHORIZED_CODE:  # another try would not help
                    raise
                problem = describe_driver_error(error)
            if screen is not None:
                empty = no_queues(broker)
                screen.update(_render(queues, rates, output.console, problem=problem, empty=empty), refresh=True)
            elif problem:
                output.note(f"mongoq: {problem}")
            else:
                at = max((queue.read_at for queue in queues), default=None)
                documents = [queue.to_document() for queue in queues]
                Output(as_json=True).document({"at": None if at is None else time_text(at), "queues": documents})
            time.sleep(interval)


def _render(
    queues: Sequence[QueueInsight], rates: Rates, console: Console, *, problem: str, empty: str
) -> RenderableType:
    """Return the lines of the screen: how current the table is, and the table, which may be cut at its end."""
    parts: list[RenderableType] = []
    at = max((queue.read_at for queue in queues), default=None)
    if problem:
        since = "" if at is None else f"; shown as of {time_text(at)}"
        parts.append(Text(f"no answer: {printable(problem, keep='')}{since}", style="bold red", overflow="fold"))
    elif at is not None:
        parts.append(Text(f"{time_text(at)}   Ctrl-C ends", style="dim"))
    shown = queues[: max(console.height - CAPTION_LINES, 1)]
    rows = [queue_row(queue, rate=rates.per_minute(queue.name)) for queue in shown]
    table = make_table(COLUMNS, rows, right=RIGHT, optional=OPTIONAL, width=console.width)
    parts.append(table if shown else Text(empty))
    if len(shown) < len(queues):
        parts.append(Text(f"and {len(queues) - len(shown):,} more; name the queues to watch", style="dim"))
    return Group(*parts)


class Rates:
    """Rates of the items that left the queues, measured by the counters in the reads of the last minute."""

    def __init__(self) -> None:
        self._reads: deque[dict[str, QueueInsight]] = deque()

    def add(self, queues: Sequence[QueueInsight]) -> None:
        """Add a read, and forget old ones."""
        if not queues:
            return
        self._reads.append({queue.name: queue for queue in queues})
        while len(self._reads) > 2 and queues[0].read_at - next(iter(self._reads[1].values())).read_at >= RATE_WINDOW:
            self._reads.popleft()

    def per_minute(self, name: str) -> str:
        """Return the rate of a queue as text; it is empty before the second read."""
        reads = [read[name] for read in self._reads if name in read]
        if len(reads) < 2 or (minutes := (reads[-1].read_at - reads[0].read_at) / timedelta(minutes=1)) <= 0:
            return ""
        left = sum(reads[-1].events.get(event, 0) - reads[0].events.get(event, 0) for event in LEAVING)
        # Counters start again when a queue was dropped or was empty for long.
        return f"{max(left, 0) / minutes:,.0f}"
