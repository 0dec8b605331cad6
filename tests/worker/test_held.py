"""What a consumer holds: decisions without a server."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from mongoq.model.item import Item, id_key
from mongoq.model.outcomes import Done, Failed, Release
from mongoq.protocol.flow import WakeEvent
from mongoq.worker.backlog import MAX_UNSETTLED, RECENT_CLAIM_SECONDS, Backlog
from mongoq.worker.consumer import SettleGroup, consumer
from mongoq.worker.handler_call import HandlerCall

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=30)


class Named:
    """Stands for a queue's handle."""

    name = "orders"


def claimed(number: int, until: datetime = NOW + LEASE) -> list[Item[int]]:
    """Return items that were reserved together."""
    token = ObjectId()
    return [
        Item(
            {"_id": ObjectId(), "q": "orders", "payload": n, "when": until, "reserved": True, "token": token},
            n,
            NOW,
            "a.b",
            NOW,
        )
        for n in range(number)
    ]


def replaced(item: Item[int], id: ObjectId) -> Item[int]:
    """Return a reservation of the item with another id."""
    fields = {"_id": id, "q": "orders", "payload": item.payload, "when": NOW + LEASE, "reserved": True}
    return Item({**fields, "token": item.token}, item.payload, NOW, "a.b", NOW)


def backlog(**options: Any) -> Backlog:
    defaults: dict[str, Any] = dict.fromkeys(("prefetch", "lease", "retry", "max_time", "batch"))
    told = {"concurrency": 2, "success_on": (), "probe": False, **defaults, **options}
    return Backlog(consumer(Named(), print, coroutines=False, **told))


def payloads(verdicts: Iterable[tuple[Item[Any], Any]]) -> list[int]:
    return [item.payload for item, _ in verdicts]


def test_it_asks_for_as_many_as_can_run_and_wait() -> None:
    held = backlog(prefetch=3)
    assert held.room() == 5
    assert held.add(claimed(5), LEASE, asked=5) == 5
    assert held.room() == 0
    held.next_call(WakeEvent())
    held.next_call(WakeEvent())
    assert held.room() == 0
    run = held.next_call(WakeEvent())
    assert run is not None
    assert held.held == 5


def test_what_ran_out_at_once_is_asked_for_in_larger_numbers_by_who_comes_late() -> None:
    held = backlog(concurrency=1)
    held.add(claimed(2), LEASE, asked=2)
    runs = [held.next_call(WakeEvent()) for _ in range(2)]
    held._sizer._claimed_at -= 10
    held._sizer._empty_at -= 10
    for run in runs:
        assert run is not None
        held.finish(run, [Done()])
    assert held.room() == 1 + 4


def test_a_batch_takes_what_waits_up_to_its_size() -> None:
    held = backlog(batch=3, prefetch=6)
    assert held.room() == 12
    assert held.add(claimed(4), LEASE, asked=12) == 2
    runs = [held.next_call(WakeEvent()) for _ in range(3)]
    assert [run and len(run.items) for run in runs] == [3, 1, None]


def test_a_runner_without_work_is_woken_by_what_comes() -> None:
    held, event = backlog(), WakeEvent()
    assert held.next_call(event) is None
    enough = held.add(claimed(1), LEASE, asked=3)
    assert held.wake(enough) == 0
    assert event.was_set
    assert held.wake(2) == 2, "there are no more"


def test_what_ends_is_held_until_it_is_settled() -> None:
    held = backlog()
    held.add(claimed(1), LEASE, asked=1)
    run = held.next_call(WakeEvent())
    assert run is not None
    assert held.finish(run, [Done()])
    assert held.settle_event.was_set
    verdicts = held.take_outcomes()
    assert payloads(verdicts) == [0]
    assert held.held == 1
    held.restore(verdicts)
    assert held.take_outcomes() == verdicts
    held.drop([item for item, _ in verdicts])
    assert held.held == 0


def test_an_item_that_is_released_without_a_run_says_nothing_about_the_handler() -> None:
    held = backlog(probe=True, retry=mongoq.Fixed(60))
    outcomes: list[Any] = [Failed(ValueError("down"), 1.0), Release(), Done()]
    probing = []
    for item, outcome in zip(claimed(3), outcomes, strict=True):
        held.add([item], LEASE, asked=1)
        run = HandlerCall([item], 0.0)
        held.running.add(run)
        held.finish(run, [outcome])
        probing.append(held.is_probing)
    assert probing == [True, True, False]


def test_an_item_is_settled_with_the_end_of_its_lease_as_it_is_now() -> None:
    """Else it would be settled by a command of its own, as one whose lease may be over."""
    held = backlog()
    held.add(claimed(2), LEASE, asked=2)
    later = NOW + timedelta(seconds=50)
    assert held.is_due(NOW + timedelta(seconds=11))
    assert not held.is_due(NOW + timedelta(seconds=9))
    for lease, wanted in held.leases_to_extend(NOW + timedelta(seconds=11)):
        assert len(wanted.ids) == 2
        held.set_lease_end(lease, later)
    run = held.next_call(WakeEvent())
    assert run is not None
    held.finish(run, [Done()])
    ((item, _),) = held.take_outcomes()
    assert item.lease_until == later
    assert item.due == NOW


def test_what_a_handler_has_extended_by_itself_ends_when_it_says() -> None:
    held = backlog()
    items = claimed(2)
    held.add(items, LEASE, asked=2)
    later = NOW + timedelta(hours=1)
    held.split_leases([items[0].held_until(later)])
    assert held.held == 2
    ((lease, wanted),) = held.leases_to_extend(NOW + timedelta(seconds=20))
    assert wanted.ids == [items[1].id]
    held.set_lease_end(lease, NOW + timedelta(seconds=50))
    for _ in range(2):
        run = held.next_call(WakeEvent())
        assert run is not None
        held.finish(run, [Done()])
    verdicts = held.take_outcomes()
    assert [item.lease_until for item, _ in verdicts] == [later, NOW + timedelta(seconds=50)]
    held.drop([item for item, _ in verdicts])
    assert held.held == 0


def test_closing_gives_back_what_waits_and_starts_nothing() -> None:
    held = backlog()
    held.add(claimed(3), LEASE, asked=3)
    run = held.next_call(WakeEvent())
    held.close()
    assert held.next_call(WakeEvent()) is None
    assert held.room() == 0
    verdicts = held.take_outcomes()
    assert payloads(verdicts) == [1, 2]
    assert all(isinstance(outcome, Release) for _, outcome in verdicts)
    held.add(claimed(2), LEASE, asked=2)
    assert payloads(held.take_outcomes()) == [0, 1], "a claim that was under way"
    assert run in held.running


def test_what_was_given_up_counts_no_more_when_it_ends() -> None:
    held = backlog()
    held.add(claimed(1), LEASE, asked=1)
    run = held.next_call(WakeEvent())
    assert run is not None
    assert held.abandon() == [run]
    assert [type(outcome) for _, outcome in held.take_outcomes()] == [Release]
    assert not held.finish(run, [Done()])
    assert held.take_outcomes() == []


def test_a_lost_item_is_told_to_its_run_and_never_settled() -> None:
    held = backlog(batch=2)
    items = claimed(3)
    held.add(items, LEASE, asked=3)
    run = held.next_call(WakeEvent())
    assert run is not None
    keys = [(item.token, id_key(item.id)) for item in items]
    assert held.lose(*keys[1]) == (items[1], run)
    assert held.lose(*keys[2]) == (items[2], None), "it waited"
    assert held.next_call(WakeEvent()) is None
    held.finish(run, [Done(), Done()])
    assert payloads(held.take_outcomes()) == [0]
    assert held.lose(*keys[0]) is None, "its settlement will tell"
    assert held.held == 1


@pytest.mark.parametrize("probe", [False, True])
def test_failures_while_the_breaker_is_closed_do_not_count(probe: bool) -> None:
    held = backlog(probe=probe, retry=mongoq.Fixed(0), concurrency=3)
    held.add(claimed(3), LEASE, asked=3)
    runs = [run for _ in range(3) if (run := held.next_call(WakeEvent()))]
    for run in runs:
        held.finish(run, [Failed(ValueError())])
    counted = [outcome.counted for _, outcome in held.take_outcomes() if isinstance(outcome, Failed)]
    assert counted == ([True, False, False] if probe else [True, True, True])


def test_a_server_that_settles_slowly_gets_no_more_claims() -> None:
    held = backlog(prefetch=10_000)
    held.add(claimed(5_000), LEASE, asked=5_000)
    while run := held.next_call(WakeEvent()):
        held.finish(run, [Done()])
    assert held.room() == 0
    verdicts = held.take_outcomes()
    assert held.room() == 0, "they are on their way"
    held.restore(verdicts[:3_000])
    held.drop(item for item, _ in verdicts[3_000:])
    assert held.room() == 0
    held.drop(item for item, _ in held.take_outcomes())
    assert held.room() > 0


def joining() -> Backlog:
    """Return what a side of a join holds."""
    told: dict[str, Any] = dict.fromkeys(("lease", "retry", "max_time"))
    side = consumer(
        Named(), print, concurrency=1, prefetch=2, batch=2, success_on=(), probe=False, coroutines=False, **told
    )
    claims: Any = Named()
    return Backlog(replace(side, claims=claims, settle_group=SettleGroup()))


def test_more_is_about_to_come_after_a_claim_that_got_all_it_asked_for() -> None:
    held = joining()
    assert not held.is_filling(), "nothing is known of the queue"
    for items, asked, more in ((2, 2, True), (1, 2, False)):
        held.add(claimed(items), LEASE, asked=asked)
        assert held.is_filling(), "they wait for a run"
        run = held.next_call(WakeEvent())
        assert run is not None
        assert held.is_filling(), "they run"
        held.finish(run, [Done()] * items)
        assert held.is_filling() == more
        held.drop(item for item, _ in held.take_outcomes())
        assert held.is_filling() == more


def test_a_full_claim_of_long_ago_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    held = joining()
    held.add(claimed(2), LEASE, asked=2)
    run = held.next_call(WakeEvent())
    assert run is not None
    held.finish(run, [Done(), Done()])
    later = time.monotonic() + RECENT_CLAIM_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert not held.is_filling()


def test_nothing_more_comes_where_too_much_was_put_off_or_that_is_closed() -> None:
    held = joining()
    held.add(claimed(2), LEASE, asked=2)
    run = held.next_call(WakeEvent())
    assert run is not None
    held.finish(run, [Done(), Done()])
    held.put_off = MAX_UNSETTLED + 1
    assert not held.is_filling()
    held.put_off = 0
    assert held.is_filling()
    held.close()
    assert not held.is_filling()


def test_those_that_are_settled_together_share_a_bell() -> None:
    first = joining()
    other = Backlog(first._consumer)
    other.refuse(claimed(1)[0], LEASE, None)
    assert first.settle_event.was_set


def test_of_two_verdicts_on_one_item_the_second_one_is_settled_by_itself() -> None:
    """It was claimed again before its first run could be settled; who settles both together hears of one alone."""
    held = backlog(prefetch=3)
    [first], [other], [later] = claimed(1), claimed(1), claimed(1)
    again = replaced(later, first.id)
    held.add([first, other], LEASE, asked=2)
    held.add([again], LEASE, asked=1)
    held.close()
    assert [item.token for item, _ in held.take_outcomes()] == [first.token, other.token]
    assert [item.token for item, _ in held.take_outcomes()] == [again.token]
    assert held.take_outcomes() == []
