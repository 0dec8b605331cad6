"""Commands ``dead …``: show dead letters, send them back or elsewhere, and delete them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click
from bson import ObjectId

from mongoq.cli.base.arguments import (
    COUNT,
    OBJECT_ID,
    QUEUE,
    examples,
    queue_argument,
    where_option,
)
from mongoq.cli.base.changes import Change, amount, with_change
from mongoq.cli.base.connection import with_broker, with_options
from mongoq.cli.base.output import OPERATION_FAILED, Output, cell, progress
from mongoq.cli.change.queue import INTERRUPTED_DELETION
from mongoq.cli.change.replay import follow, report, target_text
from mongoq.data.copies import Replayed
from mongoq.data.encoding.extended_json import json_text
from mongoq.data.envelope import EXHAUSTED_REASON, ONLY_RUN_REASON, item_document, to_plain
from mongoq.data.item import Item
from mongoq.sync import Broker
from mongoq.sync.contents import GROUPED_LETTERS, MAX_GROUPS, ItemSelection

LISTED = 20
"""Letters in one list, unless ``--limit`` gives another number."""
NAMED = 3
"""Sequences that a question names, at most."""
SENT_TOGETHER = 500
"""Letters that one page of a replay sends, at most."""


letter_options = with_options(
    queue_argument,
    click.option("--id", "ids", type=OBJECT_ID, multiple=True, help="Only this letter; repeatable."),
    where_option,
    click.option("--stage", help="Stage of a pipeline that buried them."),
    click.option("--reason", help="Reason of their burial, the whole text."),
    click.option("--error", metavar="TYPE", help="Type of their errors, such as ValueError or app.errors.NoCity."),
    click.option("--limit", type=COUNT, help="Letters, at most, the first ones."),
    click.option("--exact", is_flag=True, help="QUEUE itself is the dead queue, whatever it holds."),
)


class Letters:
    """Dead letters that the options of a command choose.

    Attributes:
        handle: dead queue that the name in the command stands for.
        ids: ids of the letters that were named; empty for all.
        limit: number of letters, at most.
        filters: arguments of ``replay`` and ``purge`` that select the letters.
        selection: the chosen letters.
    """

    def __init__(
        self, broker: Broker, *, queue: str, exact: bool, limit: int | None, ids: Sequence[ObjectId], **filters: Any
    ) -> None:
        self.handle = broker.inspect().dead_queue(queue, exact=exact)
        self.ids = ids
        self.limit = limit
        self.filters = {"ids": list(ids) or None, **filters}
        self.selection = self.handle.select(**self.filters)

    def describe_nothing(self) -> str:
        """Return what is said where no letter was found."""
        is_filtered = any(value is not None for value in self.filters.values())
        return f"{self.handle.name} holds no {'such ' if is_filtered else ''}letters"

    def read(self, limit: int) -> list[Item[Any]]:
        """Return the first letters, and show the progress of the search."""
        with progress() as show:
            return self.selection.read(limit, progress=show)


@click.group(short_help="Show, send back and delete dead letters.")
def dead() -> None:
    """Show dead letters, send them back to their queues or elsewhere, and delete them.

    QUEUE is the queue that they died in, such as orders, or the dead queue itself, such as orders.dead.
    """


@dead.command("list")
@letter_options
@click.option("--group", is_flag=True, help="Group them by reason and type of error, with counts.")
@with_broker
def list_letters(*, group: bool, broker: Broker, output: Output, **options: Any) -> None:
    """List dead letters of QUEUE, the first 20 unless --limit says otherwise."""
    chosen = Letters(broker, **options)
    limit, is_more = chosen.limit or LISTED, False
    if group:
        if chosen.ids:
            raise click.UsageError("--group counts all letters of a kind; leave --id out")
        groups, is_more = chosen.selection.groups()
        columns: tuple[str, ...] = ("number", "reason", "error", "example", "first", "last")
        rows = list(map(asdict, groups))
    else:
        found = chosen.read(limit)
        columns = ("id", "died", "queue", "stage", "holds", "reason", "error", "message")
        holds = broker.inspect().holders(found)
        rows = []
        for letter, is_holding in zip(found, holds, strict=True):
            row: dict[str, Any] = {"id": letter.id, "holds": letter.sequence if is_holding else None}
            if (origin := letter.origin) is not None:
                row |= {"died": origin.at, "queue": origin.queue, "stage": origin.stage, "reason": origin.reason}
            if letter.error is not None:
                row |= {"error": letter.error.type, "message": letter.error.message}
            rows.append(dict.fromkeys(columns) | row)
    if output.as_json:  # ids and times are strings, so that scripts can pass them on
        rows = list(map(to_plain, rows))
    optional, empty = ["stage", "holds"], chosen.describe_nothing()
    output.table(columns, rows, empty=empty, optional=optional, shortened=["message"])
    if is_more:
        output.note(f"of the first {GROUPED_LETTERS:,} letters; there are more")
    if group and len(rows) == MAX_GROUPS:
        output.note(f"the {MAX_GROUPS} largest groups; there may be more")
    if not group and len(rows) == limit and chosen.limit is None and not output.as_json:
        output.note(f"the first {limit}; --limit shows more, --group shows counts")


@dead.command()
@letter_options
@with_broker
def show(*, broker: Broker, output: Output, **options: Any) -> None:
    """Show dead letters of QUEUE with payload and traceback, the first one unless --limit says otherwise."""
    chosen = Letters(broker, **options)
    limit = chosen.limit or max(len(chosen.ids), 1)
    found = chosen.read(limit)
    holds = broker.inspect().holders(found)
    for place, letter in enumerate(found):
        if output.as_json:
            output.document(item_document(letter, whole=True))
        else:
            lines = _describe(letter, is_holding=holds[place])
            output.line(("\n" if place else "") + "\n".join(lines), keep="\n\t")
    missing = set(chosen.ids) - {letter.id for letter in found}
    if not found or missing:
        for id in sorted(missing):
            output.note(f"{chosen.handle.name} holds no letter {id}")
        if not missing:
            output.note(chosen.describe_nothing())
        click.get_current_context().exit(OPERATION_FAILED)


def _describe(letter: Item[Any], *, is_holding: bool) -> list[str]:
    """Return the lines of text that describe a letter, which may hold its sequence."""
    origin, failure = letter.origin, letter.error
    facts: dict[str, Any] = {"id": letter.id, "in": letter.queue, "state": letter.state}
    if origin is not None:
        key = f", key {origin.key!r}" if origin.key else ""
        attempts: Any = origin.attempts  # other programs may have stored anything
        runs = amount(attempts, "attempt") if isinstance(attempts, int) else cell(attempts)
        facts |= {"from": f"{origin.queue}, {runs}{key}", "stage": origin.stage}
        facts |= {"died": cell(origin.at), "reason": origin.reason}
    if is_holding:
        facts["holds"] = f"sequence {letter.sequence}: its later items wait until this letter is replayed, or gone"
    if failure is not None:
        facts["error"] = f"{failure.type}: {failure.message}" if failure.type else failure.message
    elif origin is not None and origin.reason in (EXHAUSTED_REASON, ONLY_RUN_REASON):
        # A claim buries an item whose worker died in the last run. It cannot know an error, and stores none.
        facts["error"] = "none is stored: the worker died in the last run, or the run failed without an error"
    facts["priority"] = letter.priority or None
    facts["headers"] = json_text(letter.headers) if letter.headers else None
    facts["payload"] = json_text(letter.payload)
    hops = [f"{hop.queue} ({hop.ended})" for hop in letter.trail]
    facts["trail"] = ", ".join(hops) or None
    lines = [f"{name:<9} {_indent(value)}" for name, value in facts.items() if value is not None]
    if failure is not None and failure.traceback:
        lines += ["", f"  {_indent(str(failure.traceback).rstrip(), 2)}"]
    return lines


def _indent(value: Any, width: int = 10) -> str:
    return str(value).replace("\n", f"\n{'':<{width}}")


@dead.command(
    epilog=examples(
        "mongoq dead replay orders --error TimeoutError --dry-run",
        "mongoq dead replay orders --id 65f0c0ffee65f0c0ffee0001 --yes",
    )
)
@letter_options
@click.option("--to", type=QUEUE, help="Send all of them to this queue, instead of the queues that they died in.")
@with_change
def replay(*, to: str | None, change: Change, **options: Any) -> None:
    """Send dead letters of QUEUE back to the queues that they died in, with all their attempts again."""
    _send(Letters(change.broker, **options), change, to=to)


@dead.command()
@letter_options
@click.option("--to", type=QUEUE, required=True, help="Queue that the letters go to.")
@with_change
def move(*, to: str, change: Change, **options: Any) -> None:
    """Move dead letters of QUEUE to another queue, without their keys and with all their attempts again."""
    _send(Letters(change.broker, **options), change, to=to)


def _send(chosen: Letters, change: Change, *, to: str | None) -> None:
    where = "back to their queues" if to is None else target_text(change.broker, to)
    letters = chosen.handle
    counted = change.count(chosen.selection, limit=chosen.limit, free=True, timed=not chosen.ids)
    releases = "" if to is None else _describe_releases(chosen.selection)
    if not change.allows_counted(f"send {amount(counted, 'letter')} of {letters.name} {where}{releases}"):
        return
    done = Replayed()

    def explain(done: Replayed) -> str:
        sent = f"{amount(done.pushed, 'letter')} sent, and maybe up to {SENT_TOGETHER:,} more"
        return f"{sent}; the others are still in {letters.name}"

    if not change.is_empty:
        options = {"to": to, "limit": change.limit, "as_of": change.as_of, **chosen.filters}
        done = follow(change.output, partial(letters.replay, **options), explain)
    elif chosen.ids:  # nothing can go: say what has become of these letters
        there = {letter.id for letter in chosen.selection.read(len(chosen.ids))}
        missing = tuple(id for id in dict.fromkeys(chosen.ids) if id not in there)
        done = Replayed(found=len(there), skipped=len(there), missing=missing)
    texts = [f"sent {amount(done.pushed, 'letter')} of {letters.name} {where}"]
    if done.skipped:
        texts.append(f"left out {amount(done.skipped, 'letter')}: reserved by a caller, or gone meanwhile")
    facts, counts = {"queue": letters.name}, ("found", "pushed", "skipped", "refused")
    report(change.output, done, facts, counts, texts, missing="not among the letters")


def _describe_releases(selection: ItemSelection[Any]) -> str:
    """Return which sequences go on without the chosen letters, as the end of a question; empty for none."""
    releases, more = selection.releases()
    if not releases:
        return ""
    named = [
        f"sequence {each.sequence} of {each.queue} ({amount(each.items)}, first {each.first})"
        for each in releases[:NAMED]
    ]
    number = len(releases) + more
    rest = f" and {number - len(named):,} more" if number > len(named) else ""
    return f"; without them go on {', '.join(named)}{rest}"


@dead.command()
@letter_options
@with_change
def drop(*, change: Change, **options: Any) -> None:
    """Delete dead letters of QUEUE for good; letters that a caller has reserved stay."""
    chosen = Letters(change.broker, **options)
    letters = chosen.handle
    counted = change.count(chosen.selection, limit=chosen.limit, free=True, timed=not chosen.ids)
    sentence = f"delete {amount(counted, 'letter')} of {letters.name}{_describe_releases(chosen.selection)}"
    if not change.allows_counted(sentence):
        return
    deleted = 0
    if not change.is_empty:
        with change.output.explaining(lambda: INTERRUPTED_DELETION):
            deleted = letters.purge(**chosen.filters, limit=change.limit, as_of=change.as_of)
    result = {"queue": letters.name, "deleted": deleted}
    change.output.result(result, f"deleted {amount(deleted, 'letter')} of {letters.name}")
