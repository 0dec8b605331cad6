"""Commands ``schedules …``: show schedules, pause, resume, run and remove them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from mongoq.cli.base.confirmation import Confirmation, with_confirmation
from mongoq.cli.base.connection import with_broker
from mongoq.cli.base.durations import DURATION
from mongoq.cli.base.help import examples
from mongoq.cli.base.output import Output
from mongoq.model.schedule.definition import ScheduleRecord, check_unseen
from mongoq.protocol_threads.coordination.schedules import find_schedule
from mongoq.sync import Broker

COLUMNS = ("schedule", "what", "queue", "next", "local", "last", "note")
OVER = "over"
"""Shown in place of the next tick if there is none any more: the date of ``at`` has passed."""
UNSEEN = "1d"
"""Time after which ``schedules prune`` removes schedules that no running code has, by default."""


class _ListedByDefault(click.Group):
    """Group whose command ``list`` need not be named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the command in front, if there is none."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_ListedByDefault,
    short_help="Show schedules, and pause, run or remove them.",
    epilog=examples("mongoq schedules", "mongoq schedules run report --yes", "mongoq schedules prune --unseen 7d"),
)
def schedules() -> None:
    """Show schedules, and pause, resume, run or remove them; without the name of a command, list them."""


@schedules.command("list")
@with_broker
def list_schedules(broker: Broker, output: Output) -> None:
    """Show all schedules, with their next and last ticks, and what is odd about them."""
    records = broker.schedules()
    rows = [record.to_document() if output.as_json else _row(record) for record in records]
    output.table(COLUMNS, rows, empty=f"there are no schedules in {broker.namespace}", optional=("local", "note"))


def _row(record: ScheduleRecord) -> dict[str, Any]:
    row: dict[str, Any] = {"schedule": record.name, "what": record.what, "queue": record.queue}
    local = None if record.next_local is None else record.next_local.isoformat(timespec="seconds")
    row |= {"next": OVER if record.is_over else record.next, "local": local, "last": record.last}
    return {**row, "note": "; ".join(record.notes)}


@schedules.command("pause")
@click.argument("name")
@with_confirmation
@with_broker
def pause_schedule(*, name: str, confirmation: Confirmation, broker: Broker, output: Output) -> None:
    """Let the schedule NAME make no items until it is resumed."""
    _set_paused(name, confirmation, broker, output, paused=True)


@schedules.command("resume")
@click.argument("name")
@with_confirmation
@with_broker
def resume_schedule(*, name: str, confirmation: Confirmation, broker: Broker, output: Output) -> None:
    """End the pause of the schedule NAME; what it missed goes by its rule for missed ticks."""
    _set_paused(name, confirmation, broker, output, paused=False)


def _set_paused(name: str, confirmation: Confirmation, broker: Broker, output: Output, *, paused: bool) -> None:
    verb, state = ("pause", "paused") if paused else ("resume", "not paused")
    was_paused = broker._run(find_schedule, name).paused
    if was_paused != paused:
        if not confirmation.allows(output, f"{verb} the schedule {name}", count=1):
            return
        if paused:
            broker.pause_schedule(name)
        else:
            broker.resume_schedule(name)
    if output.as_json:
        output.document({"schedule": name, "paused": paused, "was_paused": was_paused})
    else:
        output.line(f"{name} {'was' if was_paused == paused else 'is now'} {state}")


@schedules.command("run")
@click.argument("name")
@with_confirmation
@with_broker
def run_schedule(*, name: str, confirmation: Confirmation, broker: Broker, output: Output) -> None:
    """Push an extra item of the schedule NAME now; its next tick stays."""
    queue = broker._run(find_schedule, name).queue
    if not confirmation.allows(output, f"push an extra item of {name} to {queue}", count=1):
        return
    id = broker.run_schedule_now(name)
    if output.as_json:
        output.document({"schedule": name, "queue": queue, "id": str(id)})
    else:
        output.line(f"pushed item {id} to {queue}")


@schedules.command("remove")
@click.argument("name")
@with_confirmation
@with_broker
def remove_schedule(*, name: str, confirmation: Confirmation, broker: Broker, output: Output) -> None:
    """Delete the schedule NAME; its items stay. Code that defines it makes it anew when it starts."""
    record = broker._run(find_schedule, name)
    if not confirmation.allows(output, f"delete the schedule {name}", count=1):
        return
    removed = broker.remove_schedule(name)
    if output.as_json:
        output.document({"schedule": name, "deleted": int(removed)})
    else:
        output.line(f"deleted the schedule {name}")
    if record.needs_code:
        words = (
            "belongs to a function; a running worker that has it in its code makes it anew only when it starts again"
        )
        output.note(f"{name} {words}")


@schedules.command("prune")
@click.option(
    "--unseen",
    type=DURATION,
    default=UNSEEN,
    show_default=True,
    help="Time since which no running code has had them, such as 7d.",
)
@with_confirmation
@with_broker
def prune_schedules(*, unseen: timedelta, confirmation: Confirmation, broker: Broker, output: Output) -> None:
    """Delete the schedules that belong to a function which no running code has any more."""
    check_unseen(unseen)
    now = broker._context.clock.now
    records = broker.schedules()
    names = [record.name for record in records if record.is_unseen_for(unseen, now())]
    number = f"{len(names)} {'schedule' if len(names) == 1 else 'schedules'}"
    shown = f": {', '.join(names)}" if names else ""
    if (names or confirmation.dry_run) and not confirmation.allows(output, f"delete {number}{shown}", count=len(names)):
        return
    deleted = broker.prune_schedules(unseen=unseen)
    if output.as_json:
        output.document({"deleted": deleted})
    else:
        output.line(f"deleted {', '.join(deleted)}" if deleted else "there is nothing to delete")
