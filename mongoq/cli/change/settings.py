"""Commands ``pause``, ``resume`` and ``configure``: the settings of a queue, which every process follows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from mongoq.cli.base.arguments import DURATION, MAX_COUNT, ReadType, examples, queue_argument
from mongoq.cli.base.changes import Change, amount, count_items, with_change
from mongoq.cli.base.connection import with_broker, with_options
from mongoq.cli.base.output import Output
from mongoq.core.history.query import BoundedCount
from mongoq.data.arguments import read_duration
from mongoq.data.encoding.extended_json import NONE, setting_text
from mongoq.data.settings import SETTINGS, QueueSettings, to_stored
from mongoq.errors import MongoqError, QueueUnknown
from mongoq.sync import Broker, Queue

ROUGH_LIMIT = 10_000
"""Items that a command examines, at most, to say how many items a change concerns that changes none of them."""
HELP: Mapping[str, str] = {
    "lease": "Duration of a reservation, such as 30s.",
    "history": "Time for which processed items are kept, such as 7d, or none.",
    "max_retries": "Further runs of an item after the first, or none for no limit.",
    "dead": "Queue of the dead letters, or none.",
    "max_running": "Runs at a time, over all workers, or none for no limit.",
    "rate": "Runs that may start in a time, such as 100/m, or none for no limit.",
    "burst": "Runs that may start at once under --rate, or none for the default.",
    "max_in_sequence": "Items of one sequence that are handed out at a time.",
    "on_expired": "Where items go that were not started in time; history deletes them where the queue keeps none.",
    "on_dead": "Whether the next item follows an item that dies; with hold none does until the letter is replayed or "
    "gone.",
}
"""Help of the option of each setting."""
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
    before = handle.settings
    old, planned = _texts(before), _texts(handle.configure(**given, dry_run=True))
    changes = [f"{name.replace('_', '-')} {old[name]} -> {planned[name]}" for name in old if old[name] != planned[name]]
    sentence, counted = f"change {queue}: {', '.join(changes) or 'store the same settings'}", BoundedCount(len(given))
    if existing:
        counted = count_items(handle.select(state="processed"))
        sentence += f", and the history of {amount(counted)} with it"
    if not change.allows(sentence, counted):
        return
    after = handle.configure(**given, existing=existing)
    if change.output.as_json:
        change.output.document({"queue": queue, "before": _values(before), "after": _values(after)})
        return
    rows = [
        {"setting": name.replace("_", "-"), "before": old[name], "after": new} for name, new in _texts(after).items()
    ]
    change.output.table(("setting", "before", "after"), rows, empty="")


def _values(settings: QueueSettings) -> dict[str, Any]:
    """Return the settings for JSON: durations in seconds."""
    return {name: to_stored(getattr(settings, name)) for name in SETTINGS}


def _texts(settings: QueueSettings) -> dict[str, str]:
    values = {name: getattr(settings, name) for name in SETTINGS}
    return {
        name: setting_text(value) if isinstance(value, timedelta) else NONE if value is None else str(value)
        for name, value in values.items()
    }


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
