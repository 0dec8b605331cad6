"""Commands ``pause``, ``resume`` and ``configure``: the settings of a queue, which every process follows."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from typing import Any, get_args

import click

from mongoq.cli.base.amounts import ROUGH_LIMIT, amount, count_items
from mongoq.cli.base.arguments import COUNT, QUEUE
from mongoq.cli.base.confirmation import Confirmation, with_confirmation
from mongoq.cli.base.connection import with_broker
from mongoq.cli.base.durations import DURATION, DURATION_OR_NONE, ParameterType
from mongoq.cli.base.help import examples
from mongoq.cli.base.output import Output
from mongoq.errors import MongoqError, QueueUnknown
from mongoq.model.arguments import queue_name
from mongoq.model.encoding.extended_json import NONE, setting_text
from mongoq.model.settings import (
    OnDead,
    OnExpired,
    QueueSettings,
    check_burst,
    check_limit,
    check_options,
    resolve_settings,
)
from mongoq.protocol_threads import admin
from mongoq.protocol_threads.history.mistaken import refuse_unknown
from mongoq.sync import Broker, Queue

ALL_OPTIONS = (
    "--lease, --history, --max-retries, --dead, --max-running, --rate, --burst, --on-expired, --max-in-sequence "
    "and --on-dead"
)
with_new = click.option("--new", is_flag=True, help="QUEUE need not exist yet.")
"""Adds the option for a queue that has no item yet."""


class CountOrNone(ParameterType):
    """A whole number from ``least`` up, or ``none``."""

    name = "number"

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number, or ``none``."""
        text = str(value).strip().lower()
        if text == NONE:
            return NONE
        if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) < self.least:
            self.fail(f"{str(value)!r:.60} is no whole number from {self.least} up, and not none", param, ctx)
        return int(text)


def open_queue(broker: Broker, queue: str, *, new: bool | None = None) -> Queue[Any]:
    """Return the handle of a queue that is known, or is to be ``new``, with its stored settings.

    ``new`` is ``None`` for a command without the option.

    Raises:
        MongoqError: no queue has this name.
    """
    handle = broker.queue(queue)
    if not new:
        try:
            broker._run(refuse_unknown, queue)
        except QueueUnknown as error:
            if new is None:
                raise
            raise MongoqError(f"{error.problem}; if it is to be a new queue, add --new") from None
    handle.is_paused()
    return handle


@click.command(short_help="Stop claims of a queue in all processes.")
@click.argument("queue", type=QUEUE)
@with_new
@with_confirmation
@with_broker
def pause(*, queue: str, new: bool, confirmation: Confirmation, broker: Broker, output: Output) -> None:
    """Stop claims of QUEUE in all processes within a second; pushes go on, and so do runs that have begun."""
    _set_paused(open_queue(broker, queue, new=new), confirmation, output, paused=True)


@click.command(short_help="End the pause of a queue.")
@click.argument("queue", type=QUEUE)
@with_confirmation
@with_broker
def resume(*, queue: str, confirmation: Confirmation, broker: Broker, output: Output) -> None:
    """End the pause of QUEUE in all processes within a second."""
    _set_paused(open_queue(broker, queue), confirmation, output, paused=False)


def _set_paused(handle: Queue[Any], confirmation: Confirmation, output: Output, *, paused: bool) -> None:
    verb, state = ("pause", "paused") if paused else ("resume", "not paused")
    was_paused = handle.is_paused()
    if was_paused != paused:
        counted = count_items(handle, admin.count_purge, None, limit=ROUGH_LIMIT)
        change = f"{verb} {handle.name}, where {amount(counted)} wait"
        if not confirmation.allows(output, change, count=counted.number, exact=counted.exact):
            return
        if paused:
            handle.pause()
        else:
            handle.resume()
    if output.as_json:
        output.document({"queue": handle.name, "paused": paused, "was_paused": was_paused})
    else:
        output.line(f"{handle.name} {'was' if was_paused == paused else 'is now'} {state}")


@click.command(
    short_help="Change the settings of a queue.",
    epilog=examples(
        "mongoq configure orders --history 7d --max-retries 3",
        "mongoq configure orders --dead none",
        "mongoq configure mails --rate 100/m --max-running 8",
    ),
)
@click.argument("queue", type=QUEUE)
@click.option("--lease", type=DURATION, help="Duration of a reservation, such as 30s.")
@click.option("--history", type=DURATION_OR_NONE, help="Time for which processed items are kept, such as 7d, or none.")
@click.option(
    "--max-retries", type=CountOrNone(), help="Further runs of an item after the first, or none for no limit."
)
@click.option("--dead", metavar="QUEUE", help="Queue of the dead letters, or none.")
@click.option("--max-running", type=CountOrNone(1), help="Runs at a time, over all workers, or none for no limit.")
@click.option("--rate", metavar="RATE", help="Runs that may start in a time, such as 100/m, or none for no limit.")
@click.option("--burst", type=CountOrNone(1), help="Runs that may start at once under --rate, or none for the default.")
@click.option(
    "--on-expired",
    type=click.Choice(get_args(OnExpired)),
    help="Where items go that were not started in time; history deletes them where the queue keeps none.",
)
@click.option("--max-in-sequence", type=COUNT, help="Items of one sequence that are handed out at a time.")
@click.option(
    "--on-dead",
    type=click.Choice(get_args(OnDead)),
    help="Whether the next item follows an item that dies; with hold none does until the letter is replayed or gone.",
)
@click.option("--existing", is_flag=True, help="Apply --history to the items in the history too.")
@with_new
@with_confirmation
@with_broker
def configure(
    *,
    queue: str,
    lease: timedelta | None,
    history: timedelta | str | None,
    max_retries: int | str | None,
    dead: str | None,
    max_running: int | str | None,
    rate: str | None,
    burst: int | str | None,
    on_expired: OnExpired | None,
    max_in_sequence: int | None,
    on_dead: OnDead | None,
    existing: bool,
    new: bool,
    confirmation: Confirmation,
    broker: Broker,
    output: Output,
) -> None:
    """Change settings of QUEUE for all processes within a second, and show them before and after."""
    options = {
        "lease": lease,
        "history": history,
        "max_retries": max_retries,
        "dead": dead,
        "max_running": max_running,
        "rate": rate,
        "burst": burst,
        "on_expired": on_expired,
        "max_in_sequence": max_in_sequence,
        "on_dead": on_dead,
    }
    given: dict[str, Any] = {
        name: None if value == NONE else value for name, value in options.items() if value is not None
    }
    if not given:
        raise click.UsageError(f"give at least one of {ALL_OPTIONS}")
    if existing and "history" not in given:
        raise click.UsageError("--existing applies --history to the history; give --history as well")
    handle = open_queue(broker, queue, new=new)
    before = handle.settings
    after = _expected_settings(handle, given)
    changes = ", ".join(_changes(before, after)) or "store the same settings"
    kept = count_items(handle, admin.count_purge, "processed") if existing else None
    suffix = "" if kept is None else f", and the history of {amount(kept)} with it"
    count, exact = (len(given), True) if kept is None else (kept.number, kept.exact)
    if not confirmation.allows(output, f"change {queue}: {changes}{suffix}", count=count, exact=exact):
        return
    _print_settings(output, before, handle.configure(**given, existing=existing))


def _expected_settings(handle: Queue[Any], given: dict[str, Any]) -> QueueSettings:
    """Return the settings that a change would lead to, checked as ``configure`` checks them."""
    checked = check_options(queue_name(handle.name), **given)
    check_limit(handle.name, checked, dead=handle.settings.dead)
    check_burst(checked, rate=handle.settings.rate)
    return resolve_settings(handle.name, {**handle._context.state.stored, **checked})


def _texts(settings: QueueSettings) -> dict[str, str]:
    values = asdict(settings)
    del values["name"]
    return {
        name: setting_text(value) if name in ("lease", "history") else NONE if value is None else str(value)
        for name, value in values.items()
    }


def _changes(before: QueueSettings, after: QueueSettings) -> list[str]:
    old, new = _texts(before), _texts(after)
    return [f"{name.replace('_', '-')} {old[name]} -> {new[name]}" for name in old if old[name] != new[name]]


def _print_settings(output: Output, before: QueueSettings, after: QueueSettings) -> None:
    if output.as_json:
        output.document({"queue": after.name, "before": _values(before), "after": _values(after)})
        return
    old, new = _texts(before), _texts(after)
    rows = [{"setting": name.replace("_", "-"), "before": old[name], "after": new[name]} for name in old]
    output.table(("setting", "before", "after"), rows, empty="")


def _values(settings: QueueSettings) -> dict[str, Any]:
    """Return the settings for JSON: durations in seconds."""
    values = asdict(settings)
    del values["name"]
    return {k: v.total_seconds() if isinstance(v, timedelta) else v for k, v in values.items()}


@click.command("repair-sequences", short_help="Let sequences go on in order after changes by other programs.")
@click.argument("queue", type=QUEUE)
@with_broker
def repair_sequences(*, queue: str, broker: Broker, output: Output) -> None:
    """Let the sequences of QUEUE go on in order, where another program has deleted items or control documents.

    mongoq itself leaves no such sequence. A worker of the queue does the same, within some minutes.
    """
    number = open_queue(broker, queue).repair_sequences()
    if output.as_json:
        output.document({"queue": queue, "promoted": number})
    elif number:
        output.line(f"{amount(number)} of {queue} may be claimed now, or must wait again")
    else:
        output.line(f"the sequences of {queue} are in order")
