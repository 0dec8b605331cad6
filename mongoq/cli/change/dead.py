"""Commands ``dead …``: show dead letters, send them back or elsewhere, and delete them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

import click
from bson import ObjectId

from mongoq.cli.base.amounts import agreed_limit, amount, changes_nothing, count_items, may_change, time_of_count
from mongoq.cli.base.arguments import COUNT, FILTER, OBJECT_ID, QUEUE
from mongoq.cli.base.confirmation import Confirmation, with_confirmation
from mongoq.cli.base.connection import with_broker
from mongoq.cli.base.errors import OPERATION_FAILED
from mongoq.cli.base.help import examples
from mongoq.cli.base.output import Output, cell
from mongoq.cli.base.progress import DELETION_INTERRUPTED, Meter, explain_interruption
from mongoq.cli.change.replay import exit_if_incomplete, failures_of, report_failures, target_text
from mongoq.model.copies import Replayed
from mongoq.model.encoding.extended_json import json_text
from mongoq.model.item import Item, id_key
from mongoq.model.item_document import item_document, to_plain
from mongoq.protocol.history.query import BoundedCount, Query
from mongoq.protocol.settle.settle import EXHAUSTED_REASON, ONLY_RUN_REASON
from mongoq.protocol_threads.admin import purge
from mongoq.protocol_threads.history import dead_letters
from mongoq.protocol_threads.history.query import count_free
from mongoq.protocol_threads.insight import find_dead_queue
from mongoq.protocol_threads.sequence.hold import find_held_letters
from mongoq.sync import Broker, DeadQueue

F = TypeVar("F", bound=Callable[..., Any])

LISTED = 20
"""Letters in one list, unless ``--limit`` gives another number."""
GROUPED = 100_000
"""Letters that ``dead list --group`` examines, at most."""
NAMED = 3
"""Sequences that a question names, at most."""
GROUPS = 100
"""Groups in one list, at most."""


@dataclass(frozen=True, slots=True)
class LetterOptions:
    """Selection of letters, as the options of a command give it.

    Attributes:
        ids: only these letters; empty for all.
        where: filter on payloads.
        stage: stage of a pipeline that they failed in.
        reason: reason of their burial.
        error: type of their errors.
        limit: number of letters, at most.
        exact: True if the name is that of the dead queue itself.
    """

    ids: Sequence[ObjectId]
    where: Mapping[str, Any] | None
    stage: str | None
    reason: str | None
    error: str | None
    limit: int | None
    exact: bool

    @property
    def filters(self) -> dict[str, Any]:
        """Arguments of ``replay`` and ``purge`` that select letters."""
        names = ("where", "stage", "reason", "error")
        return {"ids": list(self.ids) or None, **{name: getattr(self, name) for name in names}}

    def open(self, broker: Broker, queue: str) -> DeadQueue:
        """Return the dead queue that the name in the command stands for."""
        return open_letters(broker, queue, exact=self.exact)

    def select(self, letters: DeadQueue, until: datetime | None = None) -> Query:
        """Return the selection, checked, without letters that came after ``until``."""
        return dead_letters.selection(letters._context, **self.filters, until=until)

    def read(self, letters: DeadQueue, limit: int) -> list[Item[Any]]:
        """Return the first selected letters; a search for them shows its progress."""
        with Meter() as meter:
            return letters._run(
                dead_letters.read_letters, self.select(letters), limit=limit, progress=meter.count("searched")
            )

    def count(self, letters: DeadQueue) -> BoundedCount:
        """Count the selected letters that no caller holds."""
        return count_items(letters, count_free, self.select(letters), at_most=self.limit)

    def explain_nothing(self, letters: DeadQueue) -> Replayed:
        """Return the result of a replay that sends nothing, with what has become of the letters with these ids."""
        if not self.ids:
            return Replayed()
        ids = dict.fromkeys(self.ids)
        there = {letter.id for letter in letters._run(dead_letters.read_letters, self.select(letters), limit=len(ids))}
        return Replayed(found=len(there), skipped=len(there), missing=tuple(id for id in ids if id not in there))


def open_letters(broker: Broker, queue: str, *, exact: bool = False) -> DeadQueue:
    """Return the dead queue of a queue or stage, or the dead queue that itself has this name, as ``exact`` says.

    Raises:
        QueueUnknown: no queue has this name, and no stage that has letters.
        ArgumentInvalid: the queue has no dead queue, or several hold its letters.
    """
    name, letters_of = broker._run(find_dead_queue, queue, exact=exact)
    return broker.dead_queue(name)._with(letters_of=letters_of)


def with_letters(function: F) -> F:
    """Add the options that select letters to a command, as its argument ``chosen``."""

    @functools.wraps(function)
    def command(*args: Any, **options: Any) -> Any:
        chosen = LetterOptions(**{name: options.pop(name) for name in LetterOptions.__slots__})
        return function(*args, chosen=chosen, **options)

    added = (
        click.option("--id", "ids", type=OBJECT_ID, multiple=True, help="Only this letter; repeatable."),
        click.option("--where", type=FILTER, help='Filter on payloads in JSON, such as \'{"city": "Paris"}\'.'),
        click.option("--stage", help="Stage of a pipeline that buried them."),
        click.option("--reason", help="Reason of their burial, the whole text."),
        click.option("--error", metavar="TYPE", help="Type of their errors, such as ValueError or app.errors.NoCity."),
        click.option("--limit", type=COUNT, help="Letters, at most, the first ones."),
        click.option("--exact", is_flag=True, help="QUEUE itself is the dead queue, whatever it holds."),
    )
    for option in reversed(added):
        command = option(command)
    return command  # type: ignore[return-value]


@click.group(short_help="Show, send back and delete dead letters.")
def dead() -> None:
    """Show dead letters, send them back to their queues or elsewhere, and delete them.

    QUEUE is the queue that they died in, such as orders, or the dead queue itself, such as orders.dead.
    """


@dead.command("list")
@click.argument("queue", type=QUEUE)
@click.option("--group", is_flag=True, help="Group them by reason and type of error, with counts.")
@with_letters
@with_broker
def list_letters(*, queue: str, group: bool, chosen: LetterOptions, broker: Broker, output: Output) -> None:
    """List dead letters of QUEUE, the first 20 unless --limit says otherwise."""
    letters = chosen.open(broker, queue)
    if group:
        _print_groups(letters, chosen, output)
        return
    limit = chosen.limit or LISTED
    found = chosen.read(letters, limit)
    columns = ("id", "died", "queue", "stage", "holds", "reason", "error", "message")
    empty = _nothing(letters, chosen)
    holding = letters._run(find_held_letters, found)
    rows = _rows((_row(letter, is_holding=id_key(letter.id) in holding) for letter in found), output)
    output.table(columns, rows, empty=empty, optional=["stage", "holds"], shortened=["message"])
    if len(found) == limit and chosen.limit is None and not output.as_json:
        output.note(f"the first {limit}; --limit shows more, --group shows counts")


def _rows(rows: Iterable[dict[str, Any]], output: Output) -> list[dict[str, Any]]:
    """Return rows for a table; in JSON, ids and times are strings, so that scripts can pass them on."""
    return [to_plain(row) if output.as_json else row for row in rows]


def _row(letter: Item[Any], *, is_holding: bool) -> dict[str, Any]:
    origin, failure = letter.origin, letter.error
    return {
        "id": letter.id,
        "died": None if origin is None else origin.at,
        "queue": None if origin is None else origin.queue,
        "stage": None if origin is None else origin.stage,
        "holds": letter.sequence if is_holding else None,
        "reason": None if origin is None else origin.reason,
        "error": None if failure is None else failure.type,
        "message": None if failure is None else failure.message,
    }


def _nothing(letters: DeadQueue, chosen: LetterOptions) -> str:
    is_filtered = any(value is not None for value in chosen.filters.values())
    return f"{letters.name} holds no {'such ' if is_filtered else ''}letters"


def _print_groups(letters: DeadQueue, chosen: LetterOptions, output: Output) -> None:
    selected = chosen.select(letters)
    if selected.ids is not None:
        raise click.UsageError("--group counts all letters of a kind; leave --id out")
    with output.progress("counting …"):
        groups, is_more = letters._run(dead_letters.group_letters, selected, limit=GROUPED, groups=GROUPS)
    columns = ("number", "reason", "error", "example", "first", "last")
    output.table(columns, _rows(map(asdict, groups), output), empty=_nothing(letters, chosen))
    if is_more:
        output.note(f"of the first {GROUPED:,} letters; there are more")
    if len(groups) == GROUPS:
        output.note(f"the {GROUPS} largest groups; there may be more")


@dead.command()
@click.argument("queue", type=QUEUE)
@with_letters
@with_broker
def show(*, queue: str, chosen: LetterOptions, broker: Broker, output: Output) -> None:
    """Show dead letters of QUEUE with payload and traceback, the first one unless --limit says otherwise."""
    letters = chosen.open(broker, queue)
    limit = chosen.limit or max(len(chosen.ids), 1)
    found = chosen.read(letters, limit)
    holding = letters._run(find_held_letters, found)
    for place, letter in enumerate(found):
        if output.as_json:
            output.document(item_document(letter, whole=True))
        else:
            lines = _describe(letter, is_holding=id_key(letter.id) in holding)
            output.line(("\n" if place else "") + "\n".join(lines), keep="\n\t")
    missing = set(chosen.ids) - {letter.id for letter in found}
    if not found or missing:
        for id in sorted(missing):
            output.note(f"{letters.name} holds no letter {id}")
        if not missing:
            output.note(_nothing(letters, chosen))
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
@click.argument("queue", type=QUEUE)
@click.option("--to", type=QUEUE, help="Send all of them to this queue, instead of the queues that they died in.")
@with_letters
@with_confirmation
@with_broker
def replay(
    *, queue: str, to: str | None, chosen: LetterOptions, confirmation: Confirmation, broker: Broker, output: Output
) -> None:
    """Send dead letters of QUEUE back to the queues that they died in, with all their attempts again."""
    where = "back to their queues" if to is None else target_text(broker, to)
    _send(broker, queue, chosen, confirmation, output, to=to, where=where)


@dead.command()
@click.argument("queue", type=QUEUE)
@click.option("--to", type=QUEUE, required=True, help="Queue that the letters go to.")
@with_letters
@with_confirmation
@with_broker
def move(
    *, queue: str, to: str, chosen: LetterOptions, confirmation: Confirmation, broker: Broker, output: Output
) -> None:
    """Move dead letters of QUEUE to another queue, without their keys and with all their attempts again."""
    _send(broker, queue, chosen, confirmation, output, to=to, where=target_text(broker, to))


def _send(
    broker: Broker,
    queue: str,
    chosen: LetterOptions,
    confirmation: Confirmation,
    output: Output,
    *,
    to: str | None,
    where: str,
) -> None:
    letters = chosen.open(broker, queue)
    until = None if chosen.ids else time_of_count(confirmation, broker)
    counted = chosen.count(letters)
    change = f"send {amount(counted, 'letter')} of {letters.name} {where}"
    if to is not None:
        change += _describe_releases(letters, chosen)
    if not may_change(confirmation, output, change, counted):
        return
    if changes_nothing(confirmation, counted):
        done = chosen.explain_nothing(letters)
    else:
        limit = agreed_limit(chosen.limit, until, counted)
        done = _replay(letters, chosen.select(letters, until), output, to=to, limit=limit)
    _report(output, letters.name, done, where)


def _describe_releases(letters: DeadQueue, chosen: LetterOptions) -> str:
    """Return which sequences go on without the chosen letters, as the end of a question; empty for none."""
    releases, more = letters._run(dead_letters.find_releases, chosen.select(letters))
    if not releases:
        return ""
    named = [
        f"sequence {each.sequence} of {each.queue} ({amount(each.items)}, first {each.first})"
        for each in releases[:NAMED]
    ]
    number = len(releases) + more
    rest = f" and {number - len(named):,} more" if number > len(named) else ""
    return f"; without them go on {', '.join(named)}{rest}"


def _replay(letters: DeadQueue, selected: Query, output: Output, *, to: str | None, limit: int | None) -> Replayed:
    """Send letters, and say after Ctrl-C how many were sent."""
    so_far = Replayed()

    def show(result: Replayed) -> None:
        nonlocal so_far
        so_far = result
        meter.show(f"{amount(result.pushed, 'letter')} sent")

    def explain() -> str:
        sent = f"{amount(so_far.pushed, 'letter')} sent, and maybe up to {dead_letters.LETTERS_PER_PAGE:,} more"
        return f"{sent}; the others are still in {letters.name}"

    with Meter() as meter, explain_interruption(output, explain):
        return letters._run(dead_letters.revive, selected, to=to, hop=None, limit=limit, progress=show)


def _report(output: Output, name: str, done: Replayed, where: str) -> None:
    if output.as_json:
        counts = {field: getattr(done, field) for field in ("found", "pushed", "skipped", "refused")}
        output.document({"queue": name, **counts, **failures_of(done)})
    else:
        output.line(f"sent {amount(done.pushed, 'letter')} of {name} {where}")
        if done.skipped:
            output.line(f"left out {amount(done.skipped, 'letter')}: reserved by a caller, or gone meanwhile")
        report_failures(output, done, missing="not among the letters")
    exit_if_incomplete(done)


@dead.command()
@click.argument("queue", type=QUEUE)
@with_letters
@with_confirmation
@with_broker
def drop(*, queue: str, chosen: LetterOptions, confirmation: Confirmation, broker: Broker, output: Output) -> None:
    """Delete dead letters of QUEUE for good; letters that a caller has reserved stay."""
    letters = chosen.open(broker, queue)
    until = None if chosen.ids else time_of_count(confirmation, broker)
    counted = chosen.count(letters)
    change = f"delete {amount(counted, 'letter')} of {letters.name}{_describe_releases(letters, chosen)}"
    if not may_change(confirmation, output, change, counted):
        return
    with output.progress("deleting …"), explain_interruption(output, lambda: DELETION_INTERRUPTED):
        nothing = changes_nothing(confirmation, counted)
        options = {**chosen.filters, "limit": agreed_limit(chosen.limit, until, counted), "until": until}
        deleted = 0 if nothing else letters._run(purge, None, **options)
    if output.as_json:
        output.document({"queue": letters.name, "deleted": deleted})
    else:
        output.line(f"deleted {amount(deleted, 'letter')} of {letters.name}")
