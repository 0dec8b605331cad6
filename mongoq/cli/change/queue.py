"""Commands that change a queue: its settings, which every process follows, and deletion of items or of all of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
from bson import ObjectId

from mongoq import BoundedCount
from mongoq.cli.base.arguments import (
    COUNT,
    DURATION,
    MAX_COUNT,
    OBJECT_ID,
    ReadType,
    examples,
    queue_argument,
    where_option,
)
from mongoq.cli.base.changes import Change, amount, count_items, with_change
from mongoq.cli.base.connection import with_broker, with_options
from mongoq.cli.base.output import Output
from mongoq.data.arguments import read_duration
from mongoq.data.encoding.extended_json import NONE, setting_text
from mongoq.data.item import State
from mongoq.data.settings import HELP, SETTINGS, QueueSettings, to_stored
from mongoq.errors import MongoqError, PayloadInvalid, QueueUnknown
from mongoq.sync import Broker, Queue

ROUGH_LIMIT = 10_000
"""Items that a command examines, at most, to say how many items a change concerns that changes none of them."""
INTERRUPTED_DELETION = "what was deleted by now is gone, and the rest is still there; run the command again to go on"
"""Sentence after Ctrl-C during a deletion: one command of the server deletes all, and may go on."""
METAVARS = {"dead": "QUEUE", "rate": "RATE"}


def _read_count(least: int, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text.strip()) or int(text) < least:
        raise ValueError(f"{text!r:.60} is no whole number from {least} up, and not none")
    return int(text)


def _setting_option(name: str) -> Callable[[Any], Any]:
    """Return the option of a setting, made from its type: ``none`` stands for ``None`` where it may be that."""
    hint = get_type_hints(QueueSettings)[name]
    kinds, accepts_none = get_args(hint), type(None) in get_args(hint)
    kind: Any = str
    if get_origin(hint) is Literal:
        kind = click.Choice(kinds)
    elif timedelta in (hint, *kinds):
        kind = ReadType("duration", read_duration, none=True) if accepts_none else DURATION
    elif int in kinds:
        kind = ReadType("number", partial(_read_count, 0 if name == "max_retries" else 1), none=True)
    elif hint is int:
        kind = click.IntRange(1, MAX_COUNT)
    return click.option(f"--{name.replace('_', '-')}", type=kind, metavar=METAVARS.get(name), help=HELP[name])


with_new = click.option("--new", is_flag=True, help="QUEUE need not exist yet.")
"""Adds the option for a queue that has no item yet."""


def open_queue(broker: Broker, queue: str, *, new: bool | None = None) -> Queue[Any]:
    """Return the handle of a queue that is known, or is to be ``new``, with its stored settings.

    ``new`` is ``None`` for a command without the option.

    Raises:
        MongoqError: no queue has this name.
    """
    handle = broker.queue(queue)
    if not new:
        try:
            broker.inspect().check_known(queue)
        except QueueUnknown as error:
            if new is None:
                raise
            raise MongoqError(f"{error.problem}; if it is to be a new queue, add --new") from None
    handle.is_paused()
    return handle


@click.command(short_help="Stop claims of a queue in all processes.")
@queue_argument
@with_new
@with_change
def pause(*, queue: str, new: bool, change: Change) -> None:
    """Stop claims of QUEUE in all processes within a second; pushes go on, and so do runs that have begun."""
    _set_paused(open_queue(change.broker, queue, new=new), change, paused=True)


@click.command(short_help="End the pause of a queue.")
@queue_argument
@with_change
def resume(*, queue: str, change: Change) -> None:
    """End the pause of QUEUE in all processes within a second."""
    _set_paused(open_queue(change.broker, queue), change, paused=False)


def _set_paused(handle: Queue[Any], change: Change, *, paused: bool) -> None:
    name, was_paused = handle.name, handle.is_paused()
    if was_paused != paused:
        counted = count_items(handle.select(), ROUGH_LIMIT, free=True)
        if not change.allows(f"{'pause' if paused else 'resume'} {name}, where {amount(counted)} wait", counted):
            return
        (handle.pause if paused else handle.resume)()
    print_paused(change.output, "queue", name, paused=paused, was_paused=was_paused)


def print_paused(output: Output, kind: str, name: str, *, paused: bool, was_paused: bool) -> None:
    """Print that a queue or a schedule is paused or not, and was so before or not."""
    state = "paused" if paused else "not paused"
    text = f"{name} {'was' if was_paused == paused else 'is now'} {state}"
    output.result({kind: name, "paused": paused, "was_paused": was_paused}, text)


@click.command(
    short_help="Change the settings of a queue.",
    epilog=examples(
        "mongoq configure orders --history 7d --max-retries 3",
        "mongoq configure orders --dead none",
        "mongoq configure mails --rate 100/m --max-running 8",
    ),
)
@queue_argument
@with_options(*map(_setting_option, SETTINGS))
@click.option("--existing", is_flag=True, help="Apply --history to the items in the history too.")
@with_new
@with_change
def configure(*, queue: str, existing: bool, new: bool, change: Change, **options: Any) -> None:
    """Change settings of QUEUE for all processes within a second, and show them before and after."""
    given: dict[str, Any] = {
        name: None if value == NONE else value for name, value in options.items() if value is not None
    }
    if not given:
        *names, last = (f"--{name.replace('_', '-')}" for name in SETTINGS)
        raise click.UsageError(f"give at least one of {', '.join(names)} and {last}")
    if existing and "history" not in given:
        raise click.UsageError("--existing applies --history to the history; give --history as well")
    handle = open_queue(change.broker, queue, new=new)

    def text(value: Any) -> str:
        return setting_text(value) if isinstance(value, timedelta) else NONE if value is None else str(value)

    before, planned_settings = handle.settings, handle.configure(**given, dry_run=True)
    old, planned = ({name: text(getattr(each, name)) for name in SETTINGS} for each in (before, planned_settings))
    changes = [f"{name.replace('_', '-')} {old[name]} -> {planned[name]}" for name in old if old[name] != planned[name]]
    sentence, counted = f"change {queue}: {', '.join(changes) or 'store the same settings'}", BoundedCount(len(given))
    if existing:
        counted = count_items(handle.select(state="processed"))
        sentence += f", and the history of {amount(counted)} with it"
    if not change.allows(sentence, counted):
        return
    after = handle.configure(**given, existing=existing)
    if change.output.as_json:  # durations in seconds
        shown = [{name: to_stored(getattr(each, name)) for name in SETTINGS} for each in (before, after)]
        change.output.document({"queue": queue, "before": shown[0], "after": shown[1]})
        return
    rows = [
        {"setting": name.replace("_", "-"), "before": old[name], "after": text(getattr(after, name))}
        for name in SETTINGS
    ]
    change.output.table(("setting", "before", "after"), rows, empty="")


@click.command("repair-sequences", short_help="Let sequences go on in order after changes by other programs.")
@queue_argument
@with_broker
def repair_sequences(*, queue: str, broker: Broker, output: Output) -> None:
    """Let the sequences of QUEUE go on in order, where another program has deleted items or control documents.

    mongoq itself leaves no such sequence. A worker of the queue does the same, within some minutes.
    """
    number = open_queue(broker, queue).repair_sequences()
    text = f"{amount(number)} of {queue} may be claimed now, or must wait again"
    output.result({"queue": queue, "promoted": number}, text if number else f"the sequences of {queue} are in order")


@click.command(short_help="Delete items of a queue.")
@queue_argument
@click.option("--state", type=click.Choice(get_args(State)), help="Only items in this state; processed is the history.")
@where_option
@click.option("--limit", type=COUNT, help="Items, at most, the first ones.")
@with_change
def purge(
    *, queue: str, state: State | None, where: Mapping[str, Any] | None, limit: int | None, change: Change
) -> None:
    """Delete items of QUEUE: by default all that wait, and none that a worker holds.

    With --state reserved, workers lose the items that they hold.
    """
    handle = change.broker.queue(queue)
    change.broker.inspect().check_known(queue)
    counted = change.count(handle.select(state=state, where=where), limit=limit, free=state is None)
    if not change.allows_counted(f"delete {amount(counted, f'{state} item' if state else 'item')} of {queue}"):
        return
    deleted = 0
    if not change.is_empty:
        with change.output.explaining(lambda: INTERRUPTED_DELETION):
            deleted = handle.purge(state=state, where=where, limit=change.limit, as_of=change.as_of)
    result = {"queue": queue, "state": state, "deleted": deleted}
    change.output.result(result, f"deleted {amount(deleted)} of {queue}")


@click.command(short_help="Delete one item.")
@queue_argument
@click.argument("id", type=OBJECT_ID)
@with_change
def remove(*, queue: str, id: ObjectId, change: Change) -> None:
    """Delete the item ID of QUEUE, live or in its history, unless a worker holds it.

    Its id is forgotten: pushed again, it is a new item.
    """
    handle = change.broker.queue(queue)
    change.broker.inspect().check_known(queue)
    state = _find_state(handle, id)
    if not change.allows(f"delete the {state} item {id} of {queue}"):
        return
    if not handle.remove(id):
        # Between the read and the delete a worker has taken the item, or somebody else has deleted it.
        raise MongoqError(f"item {id} of {queue!r} was not deleted: its state is now {_find_state(handle, id)}")
    change.output.result({"queue": queue, "id": str(id), "deleted": 1}, f"deleted item {id} of {queue}")


def _find_state(handle: Queue[Any], id: ObjectId) -> str:
    """Return the state of an item that can be deleted.

    Raises:
        MongoqError: the queue has no such item, or a worker holds it.
    """
    try:
        item = handle.get(id)
    except PayloadInvalid as invalid:
        # Its bytes cannot be decoded, but it can be deleted.
        item = invalid.item
    if item is None:
        raise MongoqError(f"queue {handle.name!r} has no item {id}")
    if item.state == "reserved":
        raise MongoqError(f"item {id} of {handle.name!r} is reserved until {item.lease_until}; its worker holds it")
    return item.state


@click.command("drop-queue", short_help="Delete a queue with all that is stored of it.")
@queue_argument
@click.option("--force", is_flag=True, help="Delete its live items too.")
@with_change
def drop_queue(*, queue: str, force: bool, change: Change) -> None:
    """Delete the history, the counters and the settings of QUEUE; with --force its live items as well.

    Items that come after the question stay, and the queue with them, unless --yes was given.

    Its dead queue is a queue of its own, and stays.
    """
    handle = change.broker.queue(queue)
    change.broker.inspect().check_known(queue)
    change.note_time()
    claimable, blocked, kept = (count_items(handle.select(state=state)) for state in (None, "blocked", "processed"))
    live = claimable + blocked
    if live.number and not force:
        raise MongoqError(f"queue {queue!r} holds {amount(live, 'live item')}; --force deletes them as well")
    sentence = f"delete {queue} with {amount(live, 'live item')} and {amount(kept, 'item')} of its history"
    if not change.allows(sentence, live + kept):
        return
    with change.output.explaining(lambda: INTERRUPTED_DELETION):
        deleted = 0
        if change.as_of is not None and force:
            # What came after the question makes the drop fail, and stays.
            deleted = handle.purge(as_of=change.as_of) + handle.purge(state="reserved", as_of=change.as_of)
        deleted += change.broker.drop_queue(queue, force=force and change.as_of is None)
    live_text = f" with {amount(deleted, 'live item')}" if force else ""
    change.output.result({"queue": queue, "deleted": deleted}, f"deleted {queue}{live_text}")
