"""Commands ``schedules …``: show schedules, pause, resume, run and remove them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from mongoq.cli.base.arguments import DURATION, examples
from mongoq.cli.base.changes import Change, amount, with_change
from mongoq.cli.base.connection import with_broker
from mongoq.cli.base.output import Output
from mongoq.cli.change.queue import print_paused
from mongoq.data.schedule.definition import check_unseen
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
    rows: list[dict[str, Any]] = []
    for record in records:
        if output.as_json:
            rows.append(record.to_document())
            continue
        row: dict[str, Any] = {"schedule": record.name, "what": record.what, "queue": record.queue}
        local = None if record.next_local is None else record.next_local.isoformat(timespec="seconds")
        row |= {"next": OVER if record.is_over else record.next, "local": local, "last": record.last}
        rows.append({**row, "note": "; ".join(record.notes)})
    output.table(COLUMNS, rows, empty=f"there are no schedules in {broker.namespace}", optional=("local", "note"))


@schedules.command("pause")
@click.argument("name")
@with_change
def pause_schedule(*, name: str, change: Change) -> None:
    """Let the schedule NAME make no items until it is resumed."""
    _set_paused(name, change, paused=True)


@schedules.command("resume")
@click.argument("name")
@with_change
def resume_schedule(*, name: str, change: Change) -> None:
    """End the pause of the schedule NAME; what it missed goes by its rule for missed ticks."""
    _set_paused(name, change, paused=False)


def _set_paused(name: str, change: Change, *, paused: bool) -> None:
    broker = change.broker
    was_paused = broker.inspect().schedule(name).paused
    if was_paused != paused:
        if not change.allows(f"{'pause' if paused else 'resume'} the schedule {name}"):
            return
        (broker.pause_schedule if paused else broker.resume_schedule)(name)
    print_paused(change.output, "schedule", name, paused=paused, was_paused=was_paused)


@schedules.command("run")
@click.argument("name")
@with_change
def run_schedule(*, name: str, change: Change) -> None:
    """Push an extra item of the schedule NAME now; its next tick stays."""
    queue = change.broker.inspect().schedule(name).queue
    if change.allows(f"push an extra item of {name} to {queue}"):
        id = change.broker.run_schedule_now(name)
        change.output.result({"schedule": name, "queue": queue, "id": str(id)}, f"pushed item {id} to {queue}")


@schedules.command("remove")
@click.argument("name")
@with_change
def remove_schedule(*, name: str, change: Change) -> None:
    """Delete the schedule NAME; its items stay. Code that defines it makes it anew when it starts."""
    record = change.broker.inspect().schedule(name)
    if not change.allows(f"delete the schedule {name}"):
        return
    removed = change.broker.remove_schedule(name)
    change.output.result({"schedule": name, "deleted": int(removed)}, f"deleted the schedule {name}")
    if record.needs_code:
        words = "a running worker that has it in its code makes it anew only when it starts again"
        change.output.note(f"{name} belongs to a function; {words}")


@schedules.command("prune")
@click.option(
    "--unseen", type=DURATION, default=UNSEEN, help="Time since which no running code has had them, such as 7d."
)
@with_change
def prune_schedules(*, unseen: timedelta, change: Change) -> None:
    """Delete the schedules that belong to a function which no running code has any more."""
    check_unseen(unseen)
    inspection = change.broker.inspect()
    records, now = inspection.schedules(), inspection.now()
    names = [record.name for record in records if record.is_unseen_for(unseen, now)]
    shown = f": {', '.join(names)}" if names else ""
    if (names or change.dry_run) and not change.allows(f"delete {amount(len(names), 'schedule')}{shown}", len(names)):
        return
    deleted = change.broker.prune_schedules(unseen=unseen)
    text = f"deleted {', '.join(deleted)}" if deleted else "there is nothing to delete"
    change.output.result({"deleted": deleted}, text)
