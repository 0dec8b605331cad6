"""Command ``push``: adds items to a queue, one from an argument or many from lines of JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from mongoq.cli.base.amounts import amount
from mongoq.cli.base.arguments import MOMENT, QUEUE
from mongoq.cli.base.connection import new_queue_text, with_broker
from mongoq.cli.base.durations import DURATION
from mongoq.cli.base.help import examples
from mongoq.cli.base.lines import Line, LineInvalid, read_line, read_lines
from mongoq.cli.base.output import Output, discard_stdout, printable
from mongoq.cli.base.progress import Meter
from mongoq.errors import ArgumentInvalid, BatchIncomplete, DuplicateItem
from mongoq.model.arguments import PRIORITIES
from mongoq.model.arguments import expires as checked_expires
from mongoq.model.arguments import priority as checked_priority
from mongoq.model.encoding.extended_json import read_json
from mongoq.model.sequence import check_sequence
from mongoq.protocol.push.draft import check_due, check_headers
from mongoq.protocol.push.insert import check_key, live_filter
from mongoq.protocol_threads.base.find import find_one
from mongoq.protocol_threads.history.mistaken import is_known
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
@click.argument("queue", type=QUEUE)
@click.argument("value", required=False, metavar="[JSON | -]")
@click.option("--delay", type=DURATION, help="Time until the items may be claimed, such as 30s, 5m or 2h.")
@click.option("--when", type=MOMENT, help="Time before which they are not claimed, such as 2026-11-26T14:30:00Z.")
@click.option("--expires", type=DURATION, help="Time by which they must be started, or they do not run, such as 10m.")
@click.option(
    "--priority",
    type=click.IntRange(PRIORITIES[0], PRIORITIES[-1]),
    default=0,
    show_default=True,
    help="From -100, first, to 100, last.",
)
@click.option("--key", help="At most one live item of the queue has this key; for one item only.")
@click.option("--sequence", help="The queue hands out items with the same sequence one at a time, in their order.")
@click.option("--header", "headers", multiple=True, callback=parse_headers, metavar="NAME=VALUE", help="Repeatable.")
@click.option("--dry-run", is_flag=True, help="Check the items, say how many there are, and push nothing.")
@with_broker
def push(
    *,
    queue: str,
    value: str | None,
    delay: timedelta | None,
    when: datetime | None,
    expires: timedelta | None,
    priority: int,
    key: str | None,
    sequence: str | None,
    headers: dict[str, str],
    dry_run: bool,
    broker: Broker,
    output: Output,
) -> None:
    """Add items to QUEUE, and print their ids.

    The item is JSON, or extended JSON such as {"_id": {"$oid": "65f0c0ffee65f0c0ffee0001"}}. With - or without JSON,
    each line of stdin is one item; they are pushed as they arrive. A bad line ends the command; its message says how
    many items were pushed before it.
    """
    handle = broker.queue(queue)
    options: dict[str, Any] = {
        "delay": delay,
        "when": when,
        "expires": expires,
        "priority": priority,
        "headers": headers or None,
        "sequence": sequence,
    }
    _check_options(handle, key, **options)
    is_new = not broker._run(is_known, queue)
    suffix = new_queue_text(broker) if is_new else ""
    if value is not None and value != STDIN:
        payload = _parse_argument(value)
        if dry_run:
            handle._context.codec.wrap(payload)
            is_taken = key is not None and broker._run(find_one, live_filter(queue, key)) is not None
            _say_dry_run(output, queue, 0 if is_taken else 1, suffix, is_new=is_new)
        else:
            _push_one(handle, payload, key, options, output, suffix=suffix)
        return
    if key is not None:
        raise click.UsageError("--key belongs to one item, and not to all lines of stdin")
    if value is None and sys.stdin.isatty():
        raise click.UsageError("give the item as JSON, or - to read lines of JSON from stdin")
    pusher = LinePusher(handle, options, output, dry_run=dry_run)
    pusher.push_all(sys.stdin.buffer)
    if dry_run:
        _say_dry_run(output, queue, pusher.pushed, suffix, is_new=is_new)
    else:
        output.note(f"pushed {amount(pusher.pushed)} to {queue}{suffix if pusher.pushed else ''}")


def _check_options(
    handle: Queue[Any],
    key: str | None,
    *,
    delay: Any,
    when: Any,
    expires: Any,
    priority: int,
    headers: Any,
    sequence: str | None,
) -> None:
    """Check the options before anything is read or sent."""
    check_due(delay, when)
    if expires is not None:
        checked_expires(expires)
    checked_priority(priority)
    check_headers(headers, handle._context.broker.encoding)
    if key is not None:
        check_key(key)
    if sequence is not None:
        check_sequence(sequence)
        if key is not None:
            raise click.UsageError("give --sequence or --key; an item cannot have both")


def _parse_argument(value: str) -> Any:
    try:
        return read_json(value)
    except ValueError as error:
        raise click.UsageError(printable(f"the item is {error}")) from None


def _say_dry_run(output: Output, queue: str, number: int, suffix: str, *, is_new: bool) -> None:
    change = f"push {amount(number)} to {queue}{suffix}"
    if output.as_json:
        output.document({"would": change, "count": number, "new_queue": is_new})
    else:
        output.line(f"would {change}")


def _push_one(
    handle: Queue[Any], payload: Any, key: str | None, options: dict[str, Any], output: Output, *, suffix: str
) -> None:
    pushed = True
    try:
        id = handle.push(payload, key=key, on_duplicate="keep" if key is None else "raise", **options)
    except DuplicateItem as duplicate:
        if duplicate.item_id is None:
            raise
        id, pushed = duplicate.item_id, False
    if output.as_json:
        output.document({"id": str(id), "queue": handle.name, "pushed": pushed, "new_queue": bool(suffix)})
        return
    click.echo(str(id))
    if pushed:
        output.note(f"pushed 1 item to {handle.name}{suffix}")
    else:
        output.note(f"pushed nothing: a live item of {handle.name} has the key {key!r}; this is its id")


class LinePusher:
    """Pushes the lines of a stream, batch by batch, and prints the id of each item once it is pushed.

    Attributes:
        pushed: items that were pushed so far; in a dry run, items that could be.
        last_line: number of the last line that was pushed; 0 before.
    """

    def __init__(self, handle: Queue[Any], options: dict[str, Any], output: Output, *, dry_run: bool) -> None:
        self.pushed = self.last_line = 0
        self._handle, self._options, self._output, self._dry_run = handle, options, output, dry_run
        self._has_begun = False

    def push_all(self, stream: Any) -> None:
        """Push all lines.

        Raises:
            LineInvalid: a line is no item; the lines before it are pushed, and no others.
        """
        try:
            with Meter(prints=True) as meter:
                for lines in read_lines(stream):
                    self._push_lines(lines)
                    meter.show(f"{amount(self.pushed)} pushed")
        except LineInvalid as invalid:
            raise LineInvalid(invalid.number, invalid.problem, self._state()) from None
        except KeyboardInterrupt:
            self._output.note(self._describe_stop())
            raise

    def _describe_stop(self) -> str:
        if not self._has_begun:
            return "stopped: nothing was pushed"
        return f"stopped; {self._state()}, up to line {self.last_line:,}; a batch under way may be pushed as well"

    def _state(self) -> str:
        if self._dry_run:
            return f"{amount(self.pushed)} before it could be pushed"
        return f"{amount(self.pushed)} before it {'was' if self.pushed == 1 else 'were'} pushed"

    def _push_lines(self, lines: Sequence[Line]) -> None:
        self._has_begun = self._has_begun or not self._dry_run
        payloads, numbers = [], []
        bad: LineInvalid | None = None
        for number, text in lines:
            try:
                payloads.append(read_line(text))
            except ValueError as error:
                bad = LineInvalid(number, str(error))
                break
            numbers.append(number)
        self._push(payloads, numbers)
        if bad is not None:
            raise bad

    def _push(self, payloads: list[Any], numbers: list[int]) -> None:
        try:
            self._send(payloads, numbers)
        except ArgumentInvalid:
            place, invalid = self._find_unfit(payloads)
            if invalid is None:
                raise
            self._send(payloads[:place], numbers[:place])
            raise LineInvalid(numbers[place], str(invalid)) from None

    def _find_unfit(self, payloads: list[Any]) -> tuple[int, ArgumentInvalid | None]:
        """Return the place of the first payload that cannot be stored, and its error."""
        for place, payload in enumerate(payloads):
            try:
                self._handle._context.codec.wrap(payload)
            except ArgumentInvalid as invalid:
                return place, invalid
        return 0, None

    def _send(self, payloads: list[Any], numbers: list[int]) -> None:
        if self._dry_run:
            self._handle._context.codec.wrap_many(payloads)
            self.pushed += len(payloads)
            return
        try:
            ids = self._handle.push_many(payloads, **self._options)
        except BatchIncomplete as incomplete:
            self.pushed += len(incomplete.done)
            self._print(incomplete.done, [None] * len(incomplete.done))
            span = f"lines {numbers[0]:,} to {numbers[-1]:,}"
            self._output.note(f"{amount(self.pushed)} pushed; of {span}, {len(incomplete.failed):,} may be missing")
            raise
        except ArgumentInvalid:
            # Nothing of these lines was sent.
            raise
        except Exception:
            if payloads:
                self._output.note(f"{self._state()}; nothing is known of lines {numbers[0]:,} to {numbers[-1]:,}")
            raise
        # Before the ids are printed: the message after Ctrl-C knows all of them.
        self.pushed += len(ids)
        self.last_line = numbers[-1] if numbers else self.last_line
        self._print(ids, numbers)

    def _print(self, ids: Sequence[Any], numbers: Sequence[int | None]) -> None:
        try:
            if self._output.as_json:
                for id, number in zip(ids, numbers, strict=True):
                    self._output.document({"id": str(id), "line": number})
            elif ids:
                click.echo("\n".join(map(str, ids)))
        except BrokenPipeError:
            # The reader wants no more ids, such as ``head -1``; the lines that follow are pushed all the same.
            discard_stdout()
