"""The current code continues pipelines and streams of Spark from the documents of earlier versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import mongoq
from tests.shells import Shell
from tests.stored import inside
from tests.stored.dump import Dump
from tests.stored.story import LONG, RETRY, TIMEOUT, WORDS, busy, intake, mailing, meeting, shop, trips

Drain = Callable[[mongoq.Pipeline], None]


# --- streams of Spark -------------------------------------------------------------------------


@pytest.fixture
def reader(store: Any, clock: mongoq.VirtualClock) -> Iterator[inside.Reader]:
    reader = inside.Reader(store, clock)
    yield reader
    reader.broker.close()


def test_the_next_run_takes_up_a_batch_that_was_not_settled(reader: inside.Reader, store: Any) -> None:
    run = reader.begin("stopped")
    ids = list(run.claim.ids)
    assert (run.number, run.claim.number, len(ids)) == (2, 2, 2)
    assert reader.noted() == "what was made of it"
    assert list(reader.affirm()) == ids
    assert reader.settle(2) == 2
    remembered, event = store.find({"_id": {"$in": ids}}).sort("_id")
    assert (remembered["payload"], remembered["expires"]) == ("remembered", remembered["once"])
    assert (event["payload"], event["expires"]) == ("event 2", event["processed"] + LONG)
    assert reader.claim(10, after=2).number == 3


def test_items_go_back_unused_if_their_process_died_while_it_claimed_them(
    reader: inside.Reader, store: Any, clock: mongoq.VirtualClock
) -> None:
    reader.begin("killed")
    assert not reader.has_begun()
    clock.advance(timedelta(seconds=10))
    token = store.find_one({"_id": "stream:killed"})["claim"]["token"]
    ids = [document["_id"] for document in store.find({"token": token})]
    run = reader.begin("killed")
    assert (run.number, run.claim, len(ids)) == (0, None, 2)
    assert [(document["attempts"], document["reserved"]) for document in store.find({"_id": {"$in": ids}})] == [
        (0, False)
    ] * 2


def test_one_query_at_a_time_reads_under_a_name(reader: inside.Reader, clock: mongoq.VirtualClock) -> None:
    holder = reader.begin("at work")
    assert holder.until == clock.now() + timedelta(seconds=10)
    clock.advance(timedelta(seconds=10))
    assert reader.begin("at work").claim.number == 1


def test_claims_of_a_stream_are_numbered_on(reader: inside.Reader) -> None:
    run = reader.begin("at rest")
    assert (run.number, run.claim) == (1, None)
    assert reader.claim(10, after=1).number == 2


async def test_claims_of_a_stream_are_released(shell: Shell) -> None:
    assert await shell.broker.release_claims("stopped") == 2
    items = await shell.queue("events").reserve_many(10)
    assert [item.payload for item in items] == ["remembered", "event 2", "event 6", "event 7"]


# --- pipelines -------------------------------------------------------------------------------


def stored_payloads(broker: mongoq.Broker, queue: str) -> list[Any]:
    return [item.payload for item in broker.queue(queue).peek(100)]


def delivery_before(job: mongoq.Job) -> bool:
    """Say whether the run before had the same delivery hash: its error message holds it."""
    return job.item.error is not None and job.item.error.message == f"cannot do {job.delivery_hash}"


def test_the_rest_of_a_fork_runs_to_its_end(drain: Drain, broker: mongoq.Broker, clock: mongoq.VirtualClock) -> None:
    packed: list[Any] = []
    clock.advance(RETRY)
    drain(shop(lambda line, job: packed.append((line["sku"], job.item.attempts, delivery_before(job)))))
    assert packed == [("nut", 2, True)]
    bolt, nut = broker.queue("lines").history()
    assert (bolt.payload["sku"], nut.payload["sku"]) == ("bolt", "nut")
    assert [hop.stage for hop in nut.trail] == [hop.stage for hop in bolt.trail] == ["check", "split", "pack"]
    [bill] = broker.queue("bills").peek()
    assert (bill.payload, bill.priority, bill.hops) == ({"order": 1}, 5, 2)


def test_a_letter_of_a_stage_runs_again_as_the_same_delivery(drain: Drain, broker: mongoq.Broker) -> None:
    errors = broker.dead_queue("shop.errors")
    [letter] = errors.peek()
    assert (letter.origin.queue, letter.origin.stage, letter.error.message) == ("checked", "split", "'skus'")
    assert errors.replay(stage="split").pushed == 1
    runs: list[Any] = []
    again = mongoq.Pipeline("shop", errors="shop.errors", trail="payloads")
    again.sink("checked", name="split")(lambda order, job: runs.append((order["order"], job.delivery_hash)))
    drain(again)
    assert runs == [(2, letter.origin.delivery)]


def test_items_are_replayed_from_a_queue_on_their_way(broker: mongoq.Broker) -> None:
    lines = broker.queue("lines")
    result = lines.replay(hop="checked")
    assert (result.pushed, result.refused) == (1, 0)
    assert stored_payloads(broker, "checked") == [{"order": 1, "skus": ["bolt", "nut"], "photo": 70_000}]
    assert lines.replay(hop="raw").refused == 1  # that payload was too large to be kept


def settle(ask: Any, bid: Any, job: mongoq.Job) -> Any:
    again = {"again": delivery_before(job)} if job.item.attempts > 1 else {}
    return {"lot": ask["lot"], "who": ask["who"], "price": bid["price"], **again}


def test_items_that_wait_for_partners_are_listed(broker: mongoq.Broker, dump: Dump) -> None:
    first, second = sorted(meeting(settle).waiting(broker), key=lambda waiter: waiter.value)
    assert (first.stage, first.queue, first.value, first.item.payload["who"]) == ("settle", "asks", 1, "waits")
    assert (second.value, second.item.payload["who"]) == (4, "next in line")
    assert first.until == first.since + TIMEOUT > dump.now
    assert {(waiter.queue, waiter.value, waiter.until) for waiter in trips().waiting(broker)} == {
        ("flights", 7, None),
        ("cars", 7, None),
    }


def test_a_join_goes_on_when_the_missing_partner_comes(
    drain: Drain, broker: mongoq.Broker, clock: mongoq.VirtualClock
) -> None:
    clock.advance(RETRY)
    broker.queue("bids").push_many([{"lot": 1, "price": 10}, {"lot": 4, "price": 41}], priority=4)
    drain(meeting(settle))
    items = sorted(broker.queue("settled").peek(10), key=lambda item: (item.payload["lot"], item.payload["price"]))
    assert [(item.payload["lot"], item.payload.get("who"), item.payload["price"]) for item in items] == [
        (1, "waits", 10),
        (3, "runs again", 30),
        (4, None, 40),
        (4, "next in line", 41),
    ]
    assert (items[0].priority, items[0].headers) == (3, {"by": "Ada"})
    assert (items[1].payload["again"], items[1].headers) == (True, {"by": "Bob", "of": "Cleo"})
    assert [hop.to for hop in items[0].trail] == ["meeting.settle.joined"] * 2 + ["settled"]
    assert list(meeting(settle).waiting(broker)) == []


def test_a_join_of_three_goes_on_when_the_last_one_comes(drain: Drain, broker: mongoq.Broker) -> None:
    broker.queue("hotels").push({"guest": {"trip": 7}, "name": "Ritz"})
    drain(trips())
    assert stored_payloads(broker, "booked") == [{"to": "Lyon", "hotel": "Ritz", "car": "Beetle"}]
    assert list(trips().waiting(broker)) == []


def test_a_partner_of_an_item_that_was_given_up_is_late_and_both_can_be_sent_back(
    drain: Drain, broker: mongoq.Broker, clock: mongoq.VirtualClock
) -> None:
    clock.advance(RETRY)
    broker.queue("bids").push({"lot": 2, "price": 20})
    drain(meeting(settle))
    errors = broker.dead_queue("meeting.errors")
    given_up, late = errors.peek(10)
    assert (given_up.payload["who"], late.payload["price"]) == ("given up", 20)
    assert late.origin.reason == "it came too late: its partner of 'asks' was given up before"
    assert errors.replay(stage="settle").pushed == 2
    drain(meeting(settle))
    assert {"lot": 2, "who": "given up", "price": 20} in stored_payloads(broker, "settled")


def test_an_item_that_was_given_up_and_came_back_is_missed_no_more(
    drain: Drain, broker: mongoq.Broker, clock: mongoq.VirtualClock
) -> None:
    clock.advance(RETRY)
    errors = broker.dead_queue("meeting.errors")
    assert errors.replay(stage="settle").pushed == 1
    drain(meeting(settle))
    broker.queue("bids").push_many([{"lot": 2, "price": 20}, {"lot": 2, "price": 21}])
    drain(meeting(settle))
    assert {"lot": 2, "who": "given up", "price": 20} in stored_payloads(broker, "settled")
    assert errors.size() == 0
    assert {"lot": 2, "price": 21} in [waiter.item.payload for waiter in meeting(settle).waiting(broker)]


def test_an_item_that_waits_is_given_up_when_its_time_is_over(
    drain: Drain, broker: mongoq.Broker, clock: mongoq.VirtualClock
) -> None:
    clock.advance(TIMEOUT)
    drain(meeting(settle))
    letters = broker.dead_queue("meeting.errors").peek(10)
    assert sorted(item.payload["who"] for item in letters) == ["given up", "next in line", "waits"]
    [waited] = [item for item in letters if item.payload["who"] == "waits"]
    assert (waited.origin.queue, waited.origin.key, waited.headers) == ("asks", "ask-1", {"by": "Ada"})


def test_a_source_goes_on_at_its_position(drain: Drain, broker: mongoq.Broker) -> None:
    asked: list[Any] = []

    def rows(position: Any) -> Any:
        asked.append(position)
        for n in range(position["row"], len(WORDS)):
            yield mongoq.Record(WORDS[n], position={"row": n + 1}, priority=n)

    drain(intake(rows=rows))
    assert asked == [{"row": 3}]
    items = broker.queue("words").peek(10)
    assert [item.payload for item in items] == WORDS
    assert [item.headers for item in items] == [{"row": 1}, {"row": 2}, {"row": 3}, {}, {}, {}]


def test_a_source_whose_process_died_goes_on_in_another_when_its_lease_is_over(
    drain: Drain, broker: mongoq.Broker, store: Any, clock: mongoq.VirtualClock
) -> None:
    clock.advance(timedelta(seconds=60))
    asked: list[Any] = []

    def ticks(position: Any) -> Any:
        asked.append(position)
        yield mongoq.Record(3, position=3)

    drain(intake(ticks=ticks))
    assert asked == [2]
    assert stored_payloads(broker, "ticks") == [1, 2, 3]
    document = store.find_one({"_id": "source:in%2Ftake/ticks"})
    assert (document["position"], document["pushed"], "token" in document) == (3, 3, False)


def test_an_output_of_a_stage_at_most_once_is_there_and_its_letter_can_be_sent_back(
    drain: Drain, broker: mongoq.Broker
) -> None:
    assert stored_payloads(broker, "sent") == ["DEAR"]
    errors = broker.dead_queue("mailing.errors")
    [letter] = errors.peek()
    assert (letter.payload, letter.origin.queue, letter.origin.stage) == ("lost", "letters", "send")
    assert errors.replay().pushed == 1
    drain(mailing(str.upper))
    assert stored_payloads(broker, "sent") == ["DEAR", "LOST"]


def test_an_item_of_a_dead_worker_runs_again_when_its_lease_is_over(
    drain: Drain, broker: mongoq.Broker, clock: mongoq.VirtualClock
) -> None:
    assert broker.queue("jobs").reserve() is None
    clock.advance(LONG)
    runs: list[Any] = []
    drain(busy(lambda job, run: runs.append((job, run.item.attempts))))
    assert runs == [("under way", 2)]
