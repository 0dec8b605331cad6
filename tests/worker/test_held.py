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


def make_backlog(**options: Any) -> Backlog:
    defaults: dict[str, Any] = dict.fromkeys(("prefetch", "lease", "retry", "max_time", "batch"))
    arguments = {"concurrency": 2, "success_on": (), "probe": False, **defaults, **options}
    return Backlog(consumer(Named(), print, coroutines=False, **arguments))


def payloads(verdicts: Iterable[tuple[Item[Any], Any]]) -> list[int]:
    return [item.payload for item, _ in verdicts]


def test_it_asks_for_as_many_as_can_run_and_wait() -> None:
    backlog = make_backlog(prefetch=3)
    assert backlog.room() == 5
    assert backlog.add(claimed(5), LEASE, asked=5) == 5
    assert backlog.room() == 0
    backlog.next_call(WakeEvent())
    backlog.next_call(WakeEvent())
    assert backlog.room() == 0
    run = backlog.next_call(WakeEvent())
    assert run is not None
    assert backlog.held == 5


def test_what_ran_out_at_once_is_asked_for_in_larger_numbers_by_who_comes_late() -> None:
    backlog = make_backlog(concurrency=1)
    backlog.add(claimed(2), LEASE, asked=2)
    runs = [backlog.next_call(WakeEvent()) for _ in range(2)]
    backlog._sizer._claimed_at -= 10
    backlog._sizer._empty_at -= 10
    for run in runs:
        assert run is not None
        backlog.finish(run, [Done()])
    assert backlog.room() == 1 + 4


def test_a_batch_takes_what_waits_up_to_its_size() -> None:
    backlog = make_backlog(batch=3, prefetch=6)
    assert backlog.room() == 12
    assert backlog.add(claimed(4), LEASE, asked=12) == 2
    runs = [backlog.next_call(WakeEvent()) for _ in range(3)]
    assert [run and len(run.items) for run in runs] == [3, 1, None]


def test_a_runner_without_work_is_woken_by_what_comes() -> None:
    backlog, event = make_backlog(), WakeEvent()
    assert backlog.next_call(event) is None
    enough = backlog.add(claimed(1), LEASE, asked=3)
    assert backlog.wake(enough) == 0
    assert event.was_set
    assert backlog.wake(2) == 2, "there are no more"


def test_it_has_nothing_to_run_while_a_run_is_free_and_neither_it_nor_the_queue_has_items() -> None:
    backlog = make_backlog(concurrency=1)
    assert not backlog.has_nothing_to_run()
    backlog.is_dry = True
    assert backlog.has_nothing_to_run()
    backlog.add(claimed(1), LEASE, asked=2)
    assert not backlog.has_nothing_to_run(), "an item waits"
    run = backlog.next_call(WakeEvent())
    assert run is not None
    assert not backlog.has_nothing_to_run(), "no run is free"
    backlog.finish(run, [Done()])
    assert backlog.has_nothing_to_run()
    backlog.set_limit(is_limited=True, max_call=None)
    assert not backlog.has_nothing_to_run(), "a claim takes the permits"
    backlog.set_limit(is_limited=False, max_call=None)
    backlog.close()
    assert not backlog.has_nothing_to_run(), "the worker stops"


def test_what_ends_is_held_until_it_is_settled() -> None:
    backlog = make_backlog()
    backlog.add(claimed(1), LEASE, asked=1)
    run = backlog.next_call(WakeEvent())
    assert run is not None
    assert backlog.finish(run, [Done()])
    assert backlog.settle_event.was_set
    verdicts = backlog.take_outcomes()
    assert payloads(verdicts) == [0]
    assert backlog.held == 1
    backlog.restore(verdicts)
    assert backlog.take_outcomes() == verdicts
    backlog.drop([item for item, _ in verdicts])
    assert backlog.held == 0


def test_an_item_that_is_released_without_a_run_says_nothing_about_the_handler() -> None:
    backlog = make_backlog(probe=True, retry=mongoq.Fixed(60))
    outcomes: list[Any] = [Failed(ValueError("down"), 1.0), Release(), Done()]
    probing = []
    for item, outcome in zip(claimed(3), outcomes, strict=True):
        backlog.add([item], LEASE, asked=1)
        run = HandlerCall([item], 0.0)
        backlog.running.add(run)
        backlog.finish(run, [outcome])
        probing.append(backlog.is_probing)
    assert probing == [True, True, False]


def test_an_item_is_settled_with_the_end_of_its_lease_as_it_is_now() -> None:
    """Else it would be settled by a command of its own, as one whose lease may be over."""
    backlog = make_backlog()
    backlog.add(claimed(2), LEASE, asked=2)
    later = NOW + timedelta(seconds=50)
    assert backlog.is_due(NOW + timedelta(seconds=11))
    assert not backlog.is_due(NOW + timedelta(seconds=9))
    for lease, wanted in backlog.leases_to_extend(NOW + timedelta(seconds=11)):
        assert len(wanted.ids) == 2
        backlog.set_lease_end(lease, later)
    run = backlog.next_call(WakeEvent())
    assert run is not None
    backlog.finish(run, [Done()])
    ((item, _),) = backlog.take_outcomes()
    assert item.lease_until == later
    assert item.due == NOW


def test_what_a_handler_has_extended_by_itself_ends_when_it_says() -> None:
    backlog = make_backlog()
    items = claimed(2)
    backlog.add(items, LEASE, asked=2)
    later = NOW + timedelta(hours=1)
    backlog.split_leases([items[0].held_until(later)])
    assert backlog.held == 2
    ((lease, wanted),) = backlog.leases_to_extend(NOW + timedelta(seconds=20))
    assert wanted.ids == [items[1].id]
    backlog.set_lease_end(lease, NOW + timedelta(seconds=50))
    for _ in range(2):
        run = backlog.next_call(WakeEvent())
        assert run is not None
        backlog.finish(run, [Done()])
    verdicts = backlog.take_outcomes()
    assert [item.lease_until for item, _ in verdicts] == [later, NOW + timedelta(seconds=50)]
    backlog.drop([item for item, _ in verdicts])
    assert backlog.held == 0


def test_closing_gives_back_what_waits_and_starts_nothing() -> None:
    backlog = make_backlog()
    backlog.add(claimed(3), LEASE, asked=3)
    run = backlog.next_call(WakeEvent())
    backlog.close()
    assert backlog.next_call(WakeEvent()) is None
    assert backlog.room() == 0
    verdicts = backlog.take_outcomes()
    assert payloads(verdicts) == [1, 2]
    assert all(isinstance(outcome, Release) for _, outcome in verdicts)
    backlog.add(claimed(2), LEASE, asked=2)
    assert payloads(backlog.take_outcomes()) == [0, 1], "a claim that was under way"
    assert run in backlog.running


def test_what_was_given_up_counts_no_more_when_it_ends() -> None:
    backlog = make_backlog()
    backlog.add(claimed(1), LEASE, asked=1)
    run = backlog.next_call(WakeEvent())
    assert run is not None
    assert backlog.abandon() == [run]
    assert [type(outcome) for _, outcome in backlog.take_outcomes()] == [Release]
    assert not backlog.finish(run, [Done()])
    assert backlog.take_outcomes() == []


def test_a_lost_item_is_reported_to_its_run_and_never_settled() -> None:
    backlog = make_backlog(batch=2)
    items = claimed(3)
    backlog.add(items, LEASE, asked=3)
    run = backlog.next_call(WakeEvent())
    assert run is not None
    keys = [(item.token, id_key(item.id)) for item in items]
    assert backlog.lose(*keys[1]) == (items[1], run)
    assert backlog.lose(*keys[2]) == (items[2], None), "it waited"
    assert backlog.next_call(WakeEvent()) is None
    backlog.finish(run, [Done(), Done()])
    assert payloads(backlog.take_outcomes()) == [0]
    assert backlog.lose(*keys[0]) is None, "its settlement will tell"
    assert backlog.held == 1


@pytest.mark.parametrize("probe", [False, True])
def test_failures_while_the_breaker_is_closed_do_not_count(probe: bool) -> None:
    backlog = make_backlog(probe=probe, retry=mongoq.Fixed(0), concurrency=3)
    backlog.add(claimed(3), LEASE, asked=3)
    runs = [run for _ in range(3) if (run := backlog.next_call(WakeEvent()))]
    for run in runs:
        backlog.finish(run, [Failed(ValueError())])
    counted = [outcome.counted for _, outcome in backlog.take_outcomes() if isinstance(outcome, Failed)]
    assert counted == ([True, False, False] if probe else [True, True, True])


def test_a_server_that_settles_slowly_gets_no_more_claims() -> None:
    backlog = make_backlog(prefetch=10_000)
    backlog.add(claimed(5_000), LEASE, asked=5_000)
    while run := backlog.next_call(WakeEvent()):
        backlog.finish(run, [Done()])
    assert backlog.room() == 0
    verdicts = backlog.take_outcomes()
    assert backlog.room() == 0, "they are on their way"
    backlog.restore(verdicts[:3_000])
    backlog.drop(item for item, _ in verdicts[3_000:])
    assert backlog.room() == 0
    backlog.drop(item for item, _ in backlog.take_outcomes())
    assert backlog.room() > 0


def joining() -> Backlog:
    """Return what a side of a join holds."""
    defaults: dict[str, Any] = dict.fromkeys(("lease", "retry", "max_time"))
    side = consumer(
        Named(), print, concurrency=1, prefetch=2, batch=2, success_on=(), probe=False, coroutines=False, **defaults
    )
    claims: Any = Named()
    return Backlog(replace(side, claims=claims, settle_group=SettleGroup()))


def test_more_is_about_to_come_after_a_claim_that_got_all_it_asked_for() -> None:
    backlog = joining()
    assert not backlog.is_filling(), "nothing is known of the queue"
    for items, asked, more in ((2, 2, True), (1, 2, False)):
        backlog.add(claimed(items), LEASE, asked=asked)
        assert backlog.is_filling(), "they wait for a run"
        run = backlog.next_call(WakeEvent())
        assert run is not None
        assert backlog.is_filling(), "they run"
        backlog.finish(run, [Done()] * items)
        assert backlog.is_filling() == more
        backlog.drop(item for item, _ in backlog.take_outcomes())
        assert backlog.is_filling() == more


def test_a_full_claim_of_long_ago_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    backlog = joining()
    backlog.add(claimed(2), LEASE, asked=2)
    run = backlog.next_call(WakeEvent())
    assert run is not None
    backlog.finish(run, [Done(), Done()])
    later = time.monotonic() + RECENT_CLAIM_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert not backlog.is_filling()


def test_nothing_more_comes_where_too_much_was_put_off_or_that_is_closed() -> None:
    backlog = joining()
    backlog.add(claimed(2), LEASE, asked=2)
    run = backlog.next_call(WakeEvent())
    assert run is not None
    backlog.finish(run, [Done(), Done()])
    backlog.put_off = MAX_UNSETTLED + 1
    assert not backlog.is_filling()
    backlog.put_off = 0
    assert backlog.is_filling()
    backlog.close()
    assert not backlog.is_filling()


def test_those_that_are_settled_together_share_a_bell() -> None:
    first = joining()
    second = Backlog(first._consumer)
    second.refuse(claimed(1)[0], LEASE, None)
    assert first.settle_event.was_set


def test_of_two_verdicts_on_one_item_the_second_one_is_settled_by_itself() -> None:
    """It was claimed again before its first run was settled; settled together, only one would be reported."""
    backlog = make_backlog(prefetch=3)
    [first], [second], [later] = claimed(1), claimed(1), claimed(1)
    again = replaced(later, first.id)
    backlog.add([first, second], LEASE, asked=2)
    backlog.add([again], LEASE, asked=1)
    backlog.close()
    assert [item.token for item, _ in backlog.take_outcomes()] == [first.token, second.token]
    assert [item.token for item, _ in backlog.take_outcomes()] == [again.token]
    assert backlog.take_outcomes() == []
