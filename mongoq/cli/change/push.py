"""Command ``push``: adds items to a queue, one from an argument or many from lines of JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from mongoq.cli.base.arguments import DURATION, MOMENT, examples, queue_argument
from mongoq.cli.base.changes import amount
from mongoq.cli.base.connection import new_queue_text, with_broker
from mongoq.cli.base.lines import LineSender, read_line
from mongoq.cli.base.output import Output, discard_stdout, printable
from mongoq.data.arguments import PRIORITIES
from mongoq.data.encoding.extended_json import read_json
from mongoq.errors import ArgumentInvalid, BatchIncomplete, DuplicateItem
from mongoq.sync import Broker, Queue

STDIN = "-"
"""Argument that stands for lines of stdin."""


def parse_headers(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Return headers from texts such as ``tenant=acme``."""
    headers: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"write it as name=value, not {value!r:.60}")
        if name in headers:
            raise click.BadParameter(f"{name!r:.60} is given twice")
        headers[name] = text
    return headers


@click.command(
    short_help="Add items to a queue, from JSON or JSON lines.",
    epilog=examples(
        r"""mongoq push orders '{"id": 1, "city": "Paris"}' --delay 5m""",
        "mongoq push orders - < orders.jsonl",
    ),
)
@queue_argument
@click.argument("value", required=False, metavar="[JSON | -]")
@click.option("--delay", type=DURATION, help="Time until the items may be claimed, such as 30s, 5m or 2h.")
@click.option("--when", type=MOMENT, help="Time before which they are not claimed, such as 2026-11-26T14:30:00Z.")
@click.option("--expires", type=DURATION, help="Time by which they must be started, or they do not run, such as 10m.")
@click.option(
    "--priority", type=click.IntRange(PRIORITIES[0], PRIORITIES[-1]), default=0, help="From -100, first, to 100, last."
)
@click.option("--key", help="At most one live item of the queue has this key; for one item only.")
@click.option("--sequence", help="The queue hands out items with the same sequence one at a time, in their order.")
@click.option("--header", "headers", multiple=True, callback=parse_headers, metavar="NAME=VALUE", help="Repeatable.")
@click.option("--dry-run", is_flag=True, help="Check the items, say how many there are, and push nothing.")
@with_broker
def push(
    *, queue: str, value: str | None, key: str | None, dry_run: bool, broker: Broker, output: Output, **options: Any
) -> None:
    """Add items to QUEUE, and print their ids.

    The item is JSON, or extended JSON such as {"_id": {"$oid": "65f0c0ffee65f0c0ffee0001"}}. With - or without JSON,
    each line of stdin is one item; they are pushed as they arrive. A bad line ends the command; its message says how
    many items were pushed before it.
    """
    handle = broker.queue(queue)
    options["headers"] = options["headers"] or None
    if key is not None and options["sequence"] is not None:
        raise click.UsageError("give --sequence or --key; an item cannot have both")
    handle.check_push([], key=key, **options)  # before anything is read or sent
    suffix = "" if broker.inspect().is_known(queue) else new_queue_text(broker)
    if value is not None and value != STDIN:
        try:
            payload = read_json(value)
        except ValueError as error:
            raise click.UsageError(printable(f"the item is {error}")) from None
        if not dry_run:
            pushed = True
            try:
                id = handle.push(payload, key=key, on_duplicate="keep" if key is None else "raise", **options)
            except DuplicateItem as duplicate:
                if duplicate.item_id is None:
                    raise
                id, pushed = duplicate.item_id, False
            output.result({"id": str(id), "queue": queue, "pushed": pushed, "new_queue": bool(suffix)}, str(id))
            if pushed and not output.as_json:
                output.note(f"pushed 1 item to {queue}{suffix}")
            elif not output.as_json:
                output.note(f"pushed nothing: a live item of {queue} has the key {key!r}; this is its id")
            return
        handle.check_push([payload])
        number = 0 if key is not None and broker.inspect().has_key(queue, key) else 1
    else:
        if key is not None:
            raise click.UsageError("--key belongs to one item, and not to all lines of stdin")
        if value is None and sys.stdin.isatty():
            raise click.UsageError("give the item as JSON, or - to read lines of JSON from stdin")
        pusher = LinePusher(handle, options, output, dry_run=dry_run)
        pusher.read_all(sys.stdin.buffer, prints=True)
        number = pusher.pushed
        if not dry_run:
            output.note(f"pushed {amount(number)} to {queue}{suffix if number else ''}")
            return
    change = f"push {amount(number)} to {queue}{suffix}"
    output.result({"would": change, "count": number, "new_queue": bool(suffix)}, f"would {change}")


class LinePusher(LineSender):
    """Pushes the lines of a stream, and prints the id of each item once it is pushed.

    Attributes:
        pushed: items that were pushed so far; in a dry run, items that could be.
        last_line: number of the last line that was pushed; 0 before.
    """

    batch = 10_000

    def __init__(self, handle: Queue[Any], options: dict[str, Any], output: Output, *, dry_run: bool) -> None:
        super().__init__(output, dry_run=dry_run)
        self.pushed = self.last_line = 0
        self._handle = handle
        self._options = options

    def parse(self, text: bytes) -> Any:
        """Return the payload of a line."""
        payload = read_line(text)
        self._handle.check_push([payload])
        return payload

    def state(self) -> str:
        """Return how many items were pushed."""
        verb = "could be" if self.dry_run else "was" if self.pushed == 1 else "were"
        return f"{amount(self.pushed)} before it {verb} pushed"

    def hint(self) -> str:
        """Return which lines these are."""
        return f", up to line {self.last_line:,}; a batch under way may be pushed as well"

    def send(self, items: list[Any], numbers: list[int]) -> None:
        """Push the items of lines, and print their ids."""
        if self.dry_run:
            self.pushed += len(items)
            return
        span = f"lines {numbers[0]:,} to {numbers[-1]:,}"
        incomplete: BatchIncomplete | None = None
        lines: Sequence[int | None] = numbers
        try:
            ids: Sequence[Any] = self._handle.push_many(items, **self._options)
        except BatchIncomplete as error:
            incomplete, ids = error, error.done
            lines = [None] * len(ids)
        except ArgumentInvalid:
            # Nothing of these lines was sent.
            raise
        except Exception:
            self.output.note(f"{self.state()}; nothing is known of {span}")
            raise
        # Before the ids are printed: the message after Ctrl-C knows all of them.
        self.pushed += len(ids)
        self.last_line = numbers[-1] if incomplete is None else self.last_line
        try:
            for id, number in zip(ids, lines, strict=True):
                self.output.result({"id": str(id), "line": number}, str(id))
        except BrokenPipeError:
            # The reader wants no more ids, such as ``head -1``; the lines that follow are pushed all the same.
            discard_stdout()
        if incomplete is not None:
            self.output.note(f"{amount(self.pushed)} pushed; of {span}, {len(incomplete.failed):,} may be missing")
            raise incomplete
