"""Engine of a worker: starts its consumers and sources, extends leases, sends heartbeats, and stops in good order."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any

from bson import ObjectId

from mongoq.core.base.bootstrap import ensure_transactional, hello
from mongoq.core.claim.worker_claims import check_on_server
from mongoq.core.command import WakeEvent
from mongoq.core.coordination import heartbeats
from mongoq.core.coordination.document_lease import TakenOver
from mongoq.core.coordination.repairs import REPAIR_INTERVAL, repair_in_turn
from mongoq.core.coordination.schedules import note_own_schedules
from mongoq.core.settle.by_token import extend_leases, record_timeout
from mongoq.core.state.context import BrokerContext
from mongoq.core.wait.wait import is_drained
from mongoq.data.item import id_key
from mongoq.data.log_fields import log_fields
from mongoq.data.process import Health, dice
from mongoq.data.schedule.definition import Definition
from mongoq.drivers.backend import is_outage
from mongoq.errors import StageStopped, TransactionsUnavailable
from mongoq.worker.aio.consumer_loop import AsyncConsumerLoop
from mongoq.worker.aio.source_runner import AsyncSourceRunner
from mongoq.worker.backlog import EXTENSION_DUE_SHARE
from mongoq.worker.consumer import Consumer, LogErrors
from mongoq.worker.coordinator import Coordinator
from mongoq.worker.executor import AioExecutor
from mongoq.worker.failure_log import error_line
from mongoq.worker.outcome_resolver import error_kind
from mongoq.worker.sources import SourcePlan
from mongoq.worker.time_limit import Watchdog

logger = logging.getLogger("mongoq.worker")

TICK_SECONDS = 1.0
"""Longest time between two checks of the leases, in seconds."""
LAST_SETTLE_SECONDS = 2.0
"""Seconds for the last settlements after the grace is over."""
SWEEP_INTERVAL = timedelta(minutes=1)
"""Time between two sweeps of the records of dead workers, by any worker."""
SERVER_WAIT_SECONDS = 5.0
"""Seconds of one try to reach a server before the first command; short, so that the worker can be stopped meanwhile."""
HEARTBEAT_WAIT_SECONDS = 5.0
"""Seconds beyond two heartbeats without one that the server has taken, after which a worker is not healthy."""
PERMIT_CHECK_SECONDS = 0.1
"""Seconds between two checks of permits: whether they can be given back."""
LAST_MOMENT = datetime.max.replace(tzinfo=UTC)
LOOK_SECONDS = 5.0
"""Longest time between two looks for due schedules, in seconds: another process may define one, or change it."""
MIN_LOOK_SECONDS = 0.005
"""Shortest time between two looks, in seconds."""
NOTE_SECONDS = 600.0
"""Seconds after which a worker notes again which schedules it has in its code."""
EMPTY_POLL_SECONDS = 0.02, 0.5
"""Seconds between two checks for empty queues, at first and at most."""

ENDING_WITH_STOP = {"repair sequences", "tick schedules"}
"""Tasks of a worker that end when it is told to stop; the others go on until all its items are settled."""

_worker_numbers = count(1)


async def begin_work(broker: BrokerContext, consumers: Sequence[Consumer], needs: Sequence[str]) -> None:
    """Refuse what the server cannot do, and prepare the collection.

    ``needs`` are parts that need transactions: without them, nothing is written.
    """
    if needs:
        try:
            await ensure_transactional(broker)
        except TransactionsUnavailable as error:
            raise TransactionsUnavailable(error.server, needed_by=needs) from None
    await heartbeats.begin(broker)
    for consumer in consumers:
        if consumer.item_filter is not None:
            await check_on_server(consumer.queue._context, consumer.item_filter)


class AsyncEngine:
    """Runs the consumers of a worker, once.

    Attributes:
        loops: consumer loops, one per consumer.
        source_runners: source runners, one per source.
        interrupted: True if the worker was stopped before it came to its end by itself.
    """

    asynchronous = AioExecutor.asynchronous

    def __init__(
        self,
        broker: Any,
        consumers: Sequence[Consumer],
        *,
        grace: timedelta,
        heartbeat: timedelta,
        sources: Sequence[SourcePlan] = (),
        schedules: Sequence[tuple[Definition, Any]] = (),
        run: ObjectId | None = None,
        log_errors: LogErrors = "message",
    ) -> None:
        self._broker, self._context = broker, broker._context
        self._grace, self._heartbeat, self._run_id = grace, heartbeat, run
        self._name = f"{self._context.identity}/{next(_worker_numbers)}"
        self._coordinator = coordinator = Coordinator(self._context.registry, self._name, log_errors=log_errors)
        self._executor = executor = AioExecutor(coordinator.fail)
        self.loops = [AsyncConsumerLoop(each, coordinator, executor) for each in consumers]
        coordinator.loops = self.loops
        self.source_runners = [AsyncSourceRunner(source, broker, coordinator, executor) for source in sources]
        self._undefined = list(schedules)  # with their queues
        self._noted_at = float("-inf")
        self._signals = 0
        self._prepared = self._consuming = False
        self._heard_at, self._started = 0.0, LAST_MOMENT  # set when the work begins
        self._sweep_at = LAST_MOMENT
        # True after a signal: the next call of stop comes from the program's own handler of that signal.
        self._expects_repeated_stop = self._has_heard = False
        self.interrupted = self._ended = False
        self._end_events: list[WakeEvent] = []
        self._stop_reason = ""
        limits = [loop.time_limit for loop in self.loops]
        shortest = min((limit.limit.total_seconds() for limit in limits), default=TICK_SECONDS)
        self._check_interval = min(max(shortest / 4, 0.02), TICK_SECONDS)
        self._watch = Watchdog(limits, self._check_interval, self._name, executor.loop) if limits else None

    @property
    def settled(self) -> int:
        return self._coordinator.settled

    @property
    def is_resting(self) -> bool:
        """True when the worker holds no item, and no source is at work here."""
        is_reading = any(runner.active and not runner.waits for runner in self.source_runners)
        return not (self._coordinator.holds_anything() or is_reading)

    def health(self) -> Health:
        """Return whether the worker consumes, without asking the server; from any thread."""
        reasons, failure = self._coordinator.describe_outages(), self._coordinator.failure
        if self._consuming and not self._ended:
            # A server that is cut off without a word answers nothing, and the driver waits for it.
            silent = time.monotonic() - self._heard_at
            if self._broker._driver.is_cut_off:
                reasons.insert(0, "the client knows no server that takes writes")
            elif silent > 2 * self._heartbeat.total_seconds() + HEARTBEAT_WAIT_SECONDS:
                reasons.insert(0, f"no heartbeat of this worker has reached the server for {silent:.0f} s")
        if failure is not None:
            reasons.insert(0, f"the worker cannot go on: {error_kind(failure)}")
        elif self._ended:
            reasons.insert(0, "the worker has ended")
        elif self._signals:
            reasons.insert(0, "the worker stops")
        elif not self._consuming:
            reasons.insert(0, "the worker starts, and does not consume yet")
        for loop in self.loops:
            if loop.halted is not None:
                reasons.append(f"{loop.consumer.title} has stopped: item {loop.halted[0].id} has failed for good")
            elif loop.time_limit.is_exhausted:
                reasons.append(f"{loop.consumer.title} takes nothing more: all its runs take too long, and do not end")
        for runner in self.source_runners:
            if runner.failure is not None:
                reasons.append(f"source {runner.plan.name!r} has stopped: {error_kind(runner.failure)}")
        return Health.of(reasons, (note for loop in self.loops if (note := loop.time_limit.note()) is not None))

    def stop(self, why: str = "it was told to") -> None:
        """Stop in good order; at once on the second call."""
        if self._expects_repeated_stop:
            self._expects_repeated_stop = False
            return
        self._stop_reason = self._stop_reason or why
        self.interrupted = self.interrupted or not self._signals  # with _signals set, it has ended by itself
        self._signals += 1
        for loop in self.loops:
            loop.backlog.closed = True  # not close(): a signal may have interrupted the thread that holds the lock
        for runner in self.source_runners:
            runner.stop()
        self._executor.set_event(self._coordinator.changed)

    def hear(self) -> None:
        """Stop on a signal. The program may handle the same signal and call ``stop`` too: that call does not count."""
        self._expects_repeated_stop = False
        is_first, self._has_heard = not self._has_heard, True
        if is_first and self._signals:
            return  # the program's own handler of the same signal was faster, and has called ``stop`` already
        self.stop("a signal came")
        self._expects_repeated_stop = True

    async def run(self, *, drain: bool, signals: bool = True) -> None:
        """Work until ``stop`` or, if ``signals``, a signal; with ``drain``, until the queues are empty."""
        try:
            with self._executor.signals(self.hear, wanted=signals):
                if not self._prepared:
                    await self.prepare()
                if self._signals:
                    self._log("worker %s stops before it has started: %s", self._describe_reason())
                else:
                    await self._work(drain=drain)
        finally:
            await self._executor.shield(self._end_all)
        if self._coordinator.failure is not None:
            raise self._coordinator.failure
        for loop in self.loops:
            if loop.halted is not None:
                item, error = loop.halted
                cause = error if isinstance(error, BaseException) else None
                raise StageStopped(loop.consumer.label, item.queue, item.id) from cause
        for runner in self.source_runners:
            if runner.failure is not None:
                raise StageStopped(runner.plan.name, runner.plan.queue.name, None) from runner.failure

    async def prepare(self, needs: Sequence[str] = ()) -> None:
        """Check the server, and prepare the collection; log and wait while no server answers.

        ``needs`` are parts that need transactions. Returns early when the worker is stopped. Errors other than an
        outage are raised.
        """
        while not self._signals:
            try:
                await self._broker._run_within(SERVER_WAIT_SECONDS, hello)
                await self._broker._run(begin_work, [loop.consumer for loop in self.loops], needs)
            except Exception as error:
                pause = self._coordinator.report_error("answer", error) if is_outage(error) else None
                if pause is None:
                    raise
                await self._executor.rest(self._coordinator.changed, pause)
            else:
                self._coordinator.report_recovery("answer")
                self._prepared = True
                return

    async def _work(self, *, drain: bool) -> None:
        if self._watch is not None:
            self._watch.start()
        titles = [loop.consumer.title for loop in self.loops]
        titles += [f"source {runner.plan.name!r}" for runner in self.source_runners]
        self._log("worker %s starts: %s", ", ".join(dict.fromkeys(titles)))
        self._heard_at, self._started = time.monotonic(), self._now()
        self._sweep_at = self._started
        self._consuming = True  # before the loops: a handler may ask for the health at once
        for loop in self.loops:
            loop.start()
        for runner in self.source_runners:
            runner.start(once=drain)
        if self.loops:
            self._start("extend leases", self._extend_due_leases, TICK_SECONDS)
            self._start("repair sequences", self._repair_sequences, REPAIR_INTERVAL.total_seconds())
            self._start("take permits back", self._check_permits, TICK_SECONDS)
        if any(loop.consumer.on_timeout != "log" for loop in self.loops):
            self._start("keep timeouts", self._time_out, self._check_interval)
        self._start("take heartbeats", self._send_heartbeat, self._heartbeat.total_seconds())
        self._start("tick schedules", self._tick_schedules, TICK_SECONDS)
        if drain:
            self._executor.start(self._stop_when_drained, "mongoq-drain")
        try:
            while not (self._signals or self._coordinator.failure or self._is_idle()):
                await self._executor.rest(self._coordinator.changed, TICK_SECONDS)
            reason = self._describe_reason()
            if self.interrupted and self._signals < 2 and self._coordinator.failure is None:
                reason += f"; handlers have {self._grace.total_seconds():g} s"
            self._log("worker %s stops: %s", reason)
            await self._wind_down()
        except BaseException as error:
            self.stop()
            self._log("worker %s stops at once: %s", error_kind(error))
            self._signals = 2
            self._give_up_calls()  # at once: the end of the event loop cancels the calls as well, which is no failure
            await self._executor.shield(self._wind_down)
            raise

    def _log(self, text: str, words: object) -> None:
        self._coordinator.log(logging.INFO, text, self._name, words)

    def _describe_reason(self) -> str:
        """Return the reason for the stop; an error that the worker cannot go on with comes first."""
        if self._coordinator.failure is not None:
            return f"it cannot go on: {error_line(self._coordinator.failure, self._coordinator.log_errors)}"
        return self._stop_reason or "all that it ran has stopped by itself"

    def _is_idle(self) -> bool:
        """Return whether all consumers have stopped by themselves; without consumers, whether all sources are over."""
        if self.loops:
            return all(loop.halted for loop in self.loops)
        return all(runner.over for runner in self.source_runners)

    async def _end_all(self) -> None:
        """End all loops, after any kind of end of the main loop."""
        self._coordinator.halted = self._ended = True
        for loop in self.loops:
            loop.end()
        for runner in self.source_runners:
            runner.abandon()
        if self._watch is not None:
            self._watch.stop()
        for event in self._end_events:
            event.set()
        await self._executor.close(self._last_seconds())
        within = partial(self._broker._driver.run_within, LAST_SETTLE_SECONDS)
        for loop in self.loops:
            if loop.limiter.is_limited or loop.limiter.holds_permits:
                # Permits of handlers that still run end with their leases, as all do after an error.
                number = sum(len(run.items) for run in loop.left_behind if run.is_in_handler)
                leave = partial(within, loop.limiter.leave, number)
                await self._try_last("permits and slots end with their leases: %r", leave)
        if self._consuming:
            forget = partial(self._broker._run_within, LAST_SETTLE_SECONDS, heartbeats.forget, self._name)
            await self._try_last("the record of this worker stays for a while: %r", forget)
        endings = sum((loop.counts.endings for loop in self.loops), Counter[str]())
        failed, back = endings["retried"] + endings["dead"], endings["released"]
        done = endings.total() - failed - back
        self._log("worker %s has ended; %s", f"items done: {done:,}, failed: {failed:,}, given back: {back:,}")

    # --- the end ---------------------------------------------------------------------------------

    async def _wind_down(self) -> None:
        """Stop claims, release waiting items, let calls finish during the grace, then release the rest."""
        for loop in self.loops:
            loop.backlog.close()
        for runner in self.source_runners:
            runner.stop()
        # Fetchers that wait for an item in a claim would see the end only when their wait is over.
        self._context.registry.wake()
        deadline, cut_off = self._now() + self._grace, False
        while self._is_at_work() and self._signals < 2 and self._now() < deadline:
            if self._coordinator.is_cut_off and not cut_off:
                # Nothing can be settled any more; one tick is left for a handler that is just closing the broker.
                deadline, cut_off = min(deadline, self._now() + timedelta(seconds=TICK_SECONDS)), True
            await self._executor.rest(self._coordinator.emptied, TICK_SECONDS / 20)
        self._give_up_calls()
        for runner in self.source_runners:
            runner.abandon()
        deadline = self._now() + timedelta(seconds=self._last_seconds())
        while self._is_at_work() and self._now() < deadline:
            await self._executor.rest(self._coordinator.emptied, TICK_SECONDS / 20)
        if self._coordinator.is_at_work():
            text = "some items could not be given back; they come back when their leases end"
            self._coordinator.log(logging.WARNING, text)

    def _give_up_calls(self) -> None:
        """Release the items of the calls under way, and cancel the calls if possible."""
        self._coordinator.halted = True
        for loop in self.loops:
            runs, queue = loop.backlog.abandon(), loop.consumer.name
            loop.left_behind += runs
            late = sum(run.timed_out for run in runs)  # nothing is left to release of these
            if late:
                text = "runs of queue %r that took too long and have not ended are left: %d"
                self._coordinator.log(logging.WARNING, text, queue, late, queue=queue)
            if len(runs) > late:
                text = "runs of queue %r are given up, and their items go back: %d"
                self._coordinator.log(logging.WARNING, text, queue, len(runs) - late, queue=queue)
            for run in runs:
                if run.job is not None:
                    run.job.lost.set()
            if runs:
                self._executor.abandon()

    async def _try_last(self, text: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do what should be done at the end, unless no server could take it; an error is only logged."""
        try:
            if not self._broker._driver.is_cut_off:
                await work()
        except Exception as error:
            self._coordinator.log(logging.DEBUG, text, error)

    def _last_seconds(self) -> float:
        """Return the seconds for the last commands after the grace: none without a server that could take them."""
        return 0.0 if self._broker._driver.is_cut_off else LAST_SETTLE_SECONDS

    def _is_at_work(self) -> bool:
        return self._coordinator.is_at_work() or any(runner.active for runner in self.source_runners)

    def _now(self) -> datetime:
        return self._context.clock.now()  # type: ignore[no-any-return]

    # --- beside the consumers --------------------------------------------------------------------

    def _start(self, what: str, step: Callable[[], Awaitable[float | None]], seconds: float) -> None:
        self._executor.start(partial(self._repeat, what, step, seconds), f"mongoq-{what.partition(' ')[0]}")

    async def _repeat(self, what: str, step: Callable[[], Awaitable[float | None]], seconds: float) -> None:
        """Take a step again and again until the worker ends; errors of the server do not end that.

        After a step the loop rests for as long as that returns, by default for ``seconds``, as after an error.
        """
        event, ends_early = WakeEvent(), what in ENDING_WITH_STOP
        self._end_events.append(event)
        while not (self._ended or (ends_early and self._signals)):
            pause = None
            try:
                pause = await step()
            except Exception as error:
                self._coordinator.report_error(what, error)
            else:
                self._coordinator.report_recovery(what)
            await self._executor.rest(event, seconds if pause is None else pause)

    async def _extend_due_leases(self) -> float:
        """Extend leases while handlers run, for all queues in one command."""
        now = self._now()
        if any(loop.backlog.leases_to_extend(now, EXTENSION_DUE_SHARE) for loop in self.loops):
            for loop in self.loops:
                if loop.limiter.holds_permits:
                    await self._broker._run_given(loop.limiter.extend)
                if loop.limiter.is_lost:  # the items that were held under these permits are lost
                    for _, extended in loop.backlog.leases_to_extend(LAST_MOMENT):
                        for id in extended.ids:
                            loop.lose(extended.token, id_key(id))
                    loop.limiter.forget_loss()
            due = [(loop, *entry) for loop in self.loops for entry in loop.backlog.leases_to_extend(now)]
            # A run whose permits are lost has to lose its items as well: another worker may have the permits.
            due = [entry for entry in due if entry[0].limiter.lasts(self._now() + entry[1].length)]
            if due:
                ends, lost = await self._broker._run(extend_leases, [wanted for _, _, wanted in due])
                for (_, lease, _), until in zip(due, ends, strict=True):
                    lease.until, lease.is_extended = until, True
                for key, token in lost:
                    for loop in self.loops:
                        loop.lose(token, key)
        # An extension is due when a third of a lease is over; this looks twice in that time.
        return min(TICK_SECONDS, *(loop.consumer.lease_length.total_seconds() / 6 for loop in self.loops))

    async def _check_permits(self) -> float | None:
        """Check the permits of the consumers: those that are not needed any more go back soon after the runs end."""
        for loop in self.loops:
            if loop.limiter.holds_permits:
                await self._broker._run_given(loop.limiter.give_back_unused)
        return PERMIT_CHECK_SECONDS if any(loop.limiter.holds_permits for loop in self.loops) else None

    async def _time_out(self) -> None:
        """Give up overdue calls of the consumers that say so."""
        for loop in self.loops:
            for items in loop.time_limit.give_up_overdue():
                try:
                    await loop.consumer.queue._run(record_timeout, items, loop.consumer.timeout_error())
                except Exception as error:  # only the error text on the items is lost; their leases end all the same
                    text = "that a run took too long is not kept on its items: %r"
                    self._coordinator.log(logging.DEBUG, text, error, queue=loop.consumer.name)

    async def _send_heartbeat(self) -> None:
        """Write the record of this worker, and remove those of dead workers now and then."""
        numbers, overdue = Counter[str](), dict[str, timedelta]()
        for loop in self.loops:
            name, longest = loop.consumer.name, loop.time_limit.longest()
            numbers[name] += loop.backlog.held
            if longest is not None:
                overdue[name] = max(longest, overdue.get(name, longest))
        options = {"started": self._started, "every": self._heartbeat, "queues": numbers, "overdue": overdue}
        await self._broker._run(heartbeats.beat, self._name, run=self._run_id, **options)
        self._heard_at = time.monotonic()
        if self._now() < self._sweep_at:
            return
        for record in await self._broker._run(heartbeats.swept, every=SWEEP_INTERVAL) or []:
            words, fields = (record.name, record.seen, dict(record.queues)), log_fields(worker=record.name)
            logger.warning("worker %s is gone since %s; it held %s", *words, extra=fields)
        self._sweep_at = self._now() + SWEEP_INTERVAL

    async def _repair_sequences(self) -> float:
        """Repair sequences that another program has blocked, or brought out of order.

        Only one process does so for a queue. A crash leaves them for the next worker.
        """
        for name, handle in {loop.consumer.name: loop.consumer.queue for loop in self.loops}.items():
            try:
                number = await handle._run(repair_in_turn)
            except TakenOver:
                break  # the look took longer than its lease, and another process has begun the next one
            if number:
                text = "queue %r: %d items of sequences go on, or wait again, after changes by another program"
                self._coordinator.log(logging.WARNING, text, name, number, queue=name)
        return REPAIR_INTERVAL.total_seconds() * dice.uniform(0.8, 1.0)

    async def _tick_schedules(self) -> float:
        """Define the schedules of the worker, make the ticks of all that are due; returns the seconds to the next look.

        Each worker does so, and none is the leader. One ``find`` looks for schedules that are due within five seconds.
        It is sent every five seconds, and at each tick.
        """
        while self._undefined:
            definition, queue = self._undefined[0]
            await self._broker._define_schedule(definition, queue._context)
            del self._undefined[0]
        _, following = await self._broker._make_due_ticks(timedelta(seconds=LOOK_SECONDS))
        now = time.monotonic()
        if now >= self._noted_at + NOTE_SECONDS:
            await self._broker._run(note_own_schedules)
            self._noted_at = now
        # By chance, so that many workers do not look together. A schedule that cannot tick here is no reason to hurry.
        longest = LOOK_SECONDS * dice.uniform(0.8, 1.0)
        if following is None:
            return longest
        wait: float = (following - self._now()).total_seconds()
        return min(max(wait, MIN_LOOK_SECONDS), longest)

    # --- until the queues are empty --------------------------------------------------------------

    async def _stop_when_drained(self) -> None:
        """Stop when sources have ended and nothing is left in the queues.

        A settlement during the check spoils the result: the item may have come back, or may be held by now. Items
        that run at most once are in no queue, so the held items are checked as well.
        """
        coordinator, event, pause = self._coordinator, WakeEvent(), EMPTY_POLL_SECONDS[0]
        self._end_events.append(event)
        while not (self._signals or self._ended or self._is_idle()):  # an idle worker stops by itself
            settled, holds = coordinator.settled, coordinator.holds_anything()
            # Checked twice: an item may move from a queue not checked yet to one that was already found empty.
            fed = all(runner.over for runner in self.source_runners)
            empty = fed and not holds and await self._is_empty() and await self._is_empty()
            if holds or settled != coordinator.settled:
                pause = EMPTY_POLL_SECONDS[0]
            elif empty and not coordinator.holds_anything():
                self._signals += 1
                self._stop_reason = self._stop_reason or "its queues are empty"
                coordinator.changed.set()
                return
            else:
                pause = min(pause * 2, EMPTY_POLL_SECONDS[1])
            await self._executor.rest(event, pause)

    async def _is_empty(self) -> bool:
        try:
            for consumer in [loop.consumer for loop in self.loops if loop.halted is None]:
                keeps_scheduled = consumer.drains_with_scheduled
                if not await consumer.queue._run(is_drained, consumer.lease_length, keeps_scheduled=keeps_scheduled):
                    return False
        except Exception as error:
            self._coordinator.report_error("count", error)
            return False
        self._coordinator.report_recovery("count")
        return True
