"""Schedules of a broker: items that come by a timetable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from bson import ObjectId

from mongoq.core.coordination import schedules
from mongoq.core.state.context import BrokerContext, QueueContext, context_of
from mongoq.data.arguments import Duration
from mongoq.data.process import dice
from mongoq.data.schedule.definition import UNSEEN_AFTER, Definition, ScheduleRecord, Tick, define
from mongoq.data.schedule.timetable import Missed
from mongoq.data.settings import DEFAULT, Default, queue_options
from mongoq.drivers.aio.driver import AsyncRunner
from mongoq.drivers.backend import is_outage
from mongoq.errors import ArgumentInvalid, BrokerClosed

if TYPE_CHECKING:
    from mongoq.aio.queue import AsyncQueue


class AsyncSchedules(AsyncRunner[BrokerContext]):
    """The part of ``AsyncBroker`` that defines schedules, changes them, and makes their ticks."""

    async def schedule(
        self,
        name: str,
        *,
        queue: str | AsyncQueue[Any],
        cron: str | None = None,
        timezone: str | None = None,
        every: Duration | None = None,
        start: datetime | None = None,
        at: datetime | None = None,
        payload: Any | Default = DEFAULT,
        make: Callable[[Tick], Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        priority: int = 0,
        missed: Missed = "last",
        horizon: Duration | None = None,
        jitter: Duration | None = None,
        expires: Duration | None = None,
        version: int = 0,
    ) -> datetime | None:
        """Define a schedule, or change it, and return its next tick; ``None`` if it never ticks again.

        ```python
        broker.schedule("report", queue="reports", cron="0 6 * * *", timezone="Europe/Berlin")
        ```

        The definition is stored with the collection, and any worker process makes its ticks; ``tick`` does it without a
        worker. Each tick is one item, whichever processes make it, by the server's clock. Its headers ``mongoq-tick``
        and ``mongoq-schedule`` say the time and the schedule.

        The same definition again changes nothing. Another one takes the place of the stored one, if its version is not
        lower: a pause stays, and ticks that are due and not made yet still come; the next one follows from now. Each
        change is logged (WARNING, ``mongoq.schedules``). A lower version changes nothing, and is logged.

        ``find``, and ``insert`` or ``update`` of the control document ``schedule:NAME``. A crash leaves the old
        definition or the new one.

        Args:
            name: its name, by the rules for the names of queues.
            queue: the queue of its items, or a handle, whose model then checks the payload.
            cron: five fields, as ``"0 6 * * 1-5"``; needs the extra ``schedules``.
            timezone: the zone of ``cron``, as ``"Europe/Berlin"``; required with it.
            every: distance of two ticks, one second at least.
            start: a tick of ``every``, from which the others are counted, and before which there is none; default the
                beginning of 1970 in UTC.
            at: the only tick, an aware datetime.
            payload: the payload of each item, 1 MiB at most; by default the tick, as ``{"name", "at", "timezone",
                "extra"}``.
            make: function of the ``Tick`` that returns the payload, in its place. Only a process that has called this
                method with it makes the ticks, in the worker's own task or thread, so it should be quick.
            headers: headers of each item.
            priority: priority of each item.
            missed: what becomes of ticks that are due together, after an outage or a pause. ``"last"``: only the latest
                comes. ``"all"``: all come. ``"skip"``: none that is more than a minute late.
            horizon: how far back ticks are made; default a day for ``"all"``, and any time for ``"last"``.
            jitter: each item is delayed by a part of this, which is the same in all processes.
            expires: time from its push by which the item of a tick must be started, or it never runs, longer than
                ``jitter``; ``on_expired`` of the queue says where it goes.
            version: the highest one wins; of equal ones the last.

        Raises:
            PayloadTooLarge: the payload is larger than 1 MiB.
            ModuleNotFoundError: ``cron`` without the extra ``schedules``.
        """
        context = context_of(queue)
        if not isinstance(context, QueueContext):
            context = QueueContext(self._context, queue_options(queue), self._context.untyped)
        if context.broker is not self._context:
            raise ArgumentInvalid("queue", f"{queue!r} belongs to another broker")
        definition = define(
            name,
            self._context.encoding,
            context.codec,
            queue=context.name,
            cron=cron,
            every=every,
            at=at,
            timezone=timezone,
            start=start,
            payload=payload,
            make=make,
            headers=headers,
            priority=priority,
            missed=missed,
            horizon=horizon,
            jitter=jitter,
            expires=expires,
            version=version,
        )
        return await self._define_schedule(definition, context, make)

    async def _define_schedule(
        self, definition: Definition, context: QueueContext[Any], make: Callable[[Tick], Any] | None = None
    ) -> datetime | None:
        local = schedules.LocalSchedule(definition, context, make)
        return await self._run(schedules.define_schedule, local)

    async def schedules(self) -> list[ScheduleRecord]:
        """Return all schedules by name, with their next and last ticks (``find``)."""
        return await self._run(schedules.list_schedules)

    async def pause_schedule(self, name: str) -> None:
        """Let a schedule make no ticks until ``resume_schedule`` (``update`` of its control document).

        A process that is just at a tick still makes it. Items that were made before stay.
        """
        await self._run(schedules.set_schedule_paused, name, paused=True)

    async def resume_schedule(self, name: str) -> None:
        """Let a paused schedule tick again (``update``); what it missed goes by its rule for missed ticks."""
        await self._run(schedules.set_schedule_paused, name, paused=False)

    async def run_schedule_now(self, name: str) -> ObjectId:
        """Push an extra item of a schedule, and return its id; its ticks stay as they are.

        ``find``, and as for ``push``. Its tick has ``extra`` and the present time. Two calls make two items; a crash
        leaves the item, or none. It works for a paused schedule as well.

        Raises:
            ArgumentInvalid: its payload is made by a function that this process does not have, or the function failed.
        """
        return await self._run(schedules.run_schedule_now, name)

    async def remove_schedule(self, name: str) -> bool:
        """Delete a schedule, and return whether there was one (``delete``); its items stay.

        Code that still defines it makes it anew at the next start of its process, as another schedule: ticks that this
        one has made are no reason to leave them out.
        """
        return await self._run(schedules.remove_schedule, name)

    async def prune_schedules(self, *, unseen: Duration = UNSEEN_AFTER) -> list[str]:
        """Delete the schedules that belong to code which no process runs any more; return their names.

        These are the schedules of ``worker.schedule`` and those with ``make``, if for that long no process has started
        with them or made a tick of theirs by its function, and no worker runs in a process that has them. ``find``, and
        a ``delete`` for each; a crash leaves the rest. ``unseen`` is 30 minutes at least, since running workers say
        every ten minutes what they have.
        """
        return await self._run(schedules.prune_schedules, unseen)

    async def tick(self) -> int:
        """Push the items of all ticks that are due, and return how many ticks this call has made.

        Workers do this by themselves. A program without one calls it as often as it likes, and a test after it has
        moved the clock. A schedule that cannot tick here is logged, once for each reason, and left to others.

        ``find``, again where another process was faster, and for each due schedule ``insert`` and ``findAndModify``. A
        crash between the two leaves the tick due: the next call finds that its item is there already, and goes on.
        """
        made = 0
        while True:
            now_made, following = await self._make_due_ticks(timedelta(0))
            made += now_made
            if following is None or following > self._context.clock.now():
                return made

    async def _make_due_ticks(self, within: timedelta) -> tuple[int, datetime | None]:
        """Make the due ticks, at most 100 of each schedule; return how many, and the next one within a time.

        Errors of one schedule are logged; errors of the server are raised.
        """
        documents, read_at = await self._run(schedules.find_due, within)
        left = deque(documents)
        made, following = 0, None
        while left:
            document = left.popleft()
            try:
                now_made, upcoming = await self._run(schedules.make_ticks, document, read_at)
            except Exception as error:
                if is_outage(error) or isinstance(error, BrokerClosed):
                    raise
                schedules.report_trouble(self._context, document, error)
                continue
            if now_made:
                schedules.forget_trouble(self._context, document)
                made += now_made
            if upcoming is not None:
                following = upcoming if following is None else min(following, upcoming)
            elif not now_made and left:
                # Another process was faster here, and goes through the same ones. Look which are left, and go on at a
                # place of its own: four processes that find 1,000 due schedules send 2,200 commands in place of 11,080.
                ids = {other["_id"] for other in left}
                documents, read_at = await self._run(schedules.find_due, within)
                left = deque(other for other in documents if other["_id"] in ids)
                left.rotate(dice.randrange(len(ids)))
        return made, following
