"""``rate`` and ``burst``: how many items of a queue start in any time, over all workers, as the handlers count it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

import mongoq
from mongoq.model.rate import Block, Pace, Slots, make_pace
from mongoq.protocol.coordination.limits import bucket_id, give_back_slots, take_slots
from mongoq.worker import keyed_rates, limiter
from tests.waiting import until
from tests.worker.conftest import Desk
from tests.worker.test_limits import stop_all

OBSERVER_SECONDS = 0.05
"""A handler notes its start a moment after it, and not always the same moment; the slots that were used are exact."""
ROUNDING_MS = 0.02
"""Milliseconds by which two sums of intervals may differ."""


class UsedSlots:
    """The slots that all workers of this process have used, each with the time and the pace of its use."""

    def __init__(self) -> None:
        self.used: list[tuple[float, float, Pace]] = []

    def check(self, pace: Pace, number: int) -> None:
        """Check that no two slots of a rate are closer than they may be, and that each was used in its time."""
        used = sorted((slot, now) for slot, now, by in self.used if by == pace)
        assert len(used) >= number
        assert min(later - slot for (slot, _), (later, _) in pairwise(used)) >= pace.interval - ROUNDING_MS
        assert all(slot - ROUNDING_MS <= now <= slot + pace.tolerance + ROUNDING_MS for slot, now in used)


@pytest.fixture
def used_slots(monkeypatch: pytest.MonkeyPatch) -> UsedSlots:
    """Records the slots of starts, whatever the moment at which a handler notes them."""
    record = UsedSlots()

    class Recorded(Slots):
        def use(self, now: float, n: int = 1) -> float:
            assert n == 1
            before = {block: block.next for block in self._blocks}
            wait = super().use(now, n)
            if wait == 0:
                [block] = [block for block, first in before.items() if block.next != first]
                record.used.append((block.next - block.pace.interval, now, block.pace))
            return wait

    for module in (limiter, keyed_rates):
        monkeypatch.setattr(module, "Slots", Recorded)
    return record


class Starts:
    """The times at which handlers began, by queue or key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.times: defaultdict[Any, list[float]] = defaultdict(list)

    def consume(self, desk: Desk, queue: str, **options: Any) -> None:
        """Have the next worker note starts: by queue, or by the key in the payloads."""

        def handle(payload: Any) -> None:
            now = time.monotonic()
            with self._lock:
                self.times[payload["key"] if "rate_key" in options else queue].append(now)

        async def handle_async(payload: Any) -> None:
            handle(payload)

        desk.consumers.append((queue, handle_async if desk.kind == "tasks" else handle, options))


def exceeds(times: Sequence[float], rate: float, burst: int) -> list[tuple[int, float]]:
    """Return the windows that contain more than ``burst + T * rate`` starts, as their number and length."""
    times = sorted(times)
    return [
        (last - first + 1, times[last] - times[first])
        for first in range(len(times))
        for last in range(first, len(times))
        if last - first + 1 > burst + (times[last] - times[first] + OBSERVER_SECONDS) * rate
    ]


def test_each_queue_of_a_worker_goes_by_its_own_rate(
    desk: Desk, raw: Any, broker: mongoq.Broker, used_slots: UsedSlots
) -> None:
    starts = Starts()
    for queue, number, options in (("orders", 12, {"rate": "10/s"}), ("mails", 60, {"rate": "40/s", "burst": 5})):
        broker.queue(queue).push_many(list(range(number)))
        starts.consume(desk, queue, concurrency=4, **options)
    desk.run()
    assert len(starts.times["orders"]) == 12
    assert len(starts.times["mails"]) == 60
    assert not exceeds(starts.times["orders"], 10, 2)
    assert not exceeds(starts.times["mails"], 40, 5)
    used_slots.check(make_pace("10/s", None), 12)
    used_slots.check(make_pace("40/s", 5), 60)
    assert sorted(raw.distinct("_id", {"_id": {"$regex": "^rate:"}})) == ["rate:mails", "rate:orders"]


def test_slots_are_given_back_unless_later_ones_are_taken(broker: mongoq.Broker, raw: Any, queue: Any) -> None:
    queue.push(1)
    pace = make_pace("1/m", 600)

    def take(n: int) -> Block:
        taken = broker._run(_take, pace, n)
        assert isinstance(taken, tuple)
        return taken[0]

    first, second = take(2), take(500)
    assert second.next == first.end
    assert not broker._run(_give_back, first)
    assert raw.find_one({"_id": "rate:orders"})["next"] == second.end
    second.next += 498 * pace.interval
    assert broker._run(_give_back, second)
    document = raw.find_one({"_id": "rate:orders"})
    assert document["next"] == second.next
    # Without the document 600 could start at once: it stays until they may, in more than eight hours.
    assert document["expires"] - broker._context.clock.now() > timedelta(hours=5)


def _take(context: Any, pace: Any, n: int) -> Any:
    return take_slots(context, bucket_id("orders"), pace, n)


def _give_back(context: Any, own: Block) -> Any:
    return give_back_slots(context, bucket_id("orders"), own)


def test_two_workers_share_a_rate(desk: Desk, raw: Any, queue: Any, used_slots: UsedSlots) -> None:
    starts = Starts()
    queue.push_many(list(range(200)))
    starts.consume(desk, "orders", concurrency=4, rate="8/s", burst=1)
    runs = [desk.start(), desk.start()]
    until(lambda: len(starts.times["orders"]) >= 24)
    # Nothing is reserved that may not start within a moment.
    assert queue.counts().reserved <= 2 * 2
    stop_all(desk, runs)
    assert not exceeds(starts.times["orders"], 8, 1)
    used_slots.check(make_pace("8/s", 1), 24)
    assert raw.find_one({"_id": "rate:orders"})["expires"] is not None


@pytest.mark.parametrize("rate", ["3/h", "12/m", "2/s"])
def test_an_idle_worker_starts_the_first_item_of_a_slow_rate(desk: Desk, queue: Any, raw: Any, rate: str) -> None:
    starts = Starts()
    starts.consume(desk, "orders", concurrency=4, rate=rate)
    running = desk.start()
    until(lambda: raw.find_one({"_id": "rate:orders"}) is not None)  # it has looked for items, in vain
    queue.push(1)
    until(lambda: len(starts.times["orders"]) == 1)
    running.stop()


def test_a_rate_follows_what_is_configured(desk: Desk, queue: Any) -> None:
    starts = Starts()
    times = starts.times["orders"]
    queue.push_many(list(range(1_000)))
    starts.consume(desk, "orders", concurrency=4, rate="1/h")
    running = desk.start()
    until(lambda: len(times) == 1)
    queue.configure(rate="10/s", burst=1)
    until(lambda: len(times) > 10)
    assert not exceeds(times, 10, 1)
    queue.configure(rate=None)
    until(lambda: len(times) > 300)
    running.stop()
