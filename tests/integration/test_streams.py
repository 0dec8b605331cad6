"""Streams of queues: claims in numbers, taken up again after any crash, settled once, never anybody else's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import Int64, ObjectId

import mongoq
from mongoq.protocol.coordination import streams
from mongoq.protocol.settle import by_token
from mongoq.protocol.settle.by_token import read_held_documents
from tests.integration.streaming import LEASE, QUEUE, RUN, Make, Process, is_run
from tests.proxy import Kind, Proxy

NOW = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> mongoq.VirtualClock:
    return mongoq.VirtualClock(NOW)


@pytest.fixture
def make(raw: Any, clock: mongoq.VirtualClock) -> Iterator[Make]:
    processes: list[Process] = []

    def make(**options: Any) -> Process:
        processes.append(Process(raw, clock, **options))
        return processes[-1]

    yield make
    for process in processes:
        process.broker.close()


@pytest.fixture
def process(make: Make) -> Process:
    """A process that has begun a run of consumer ``etl``."""
    process = make()
    process.queue.resume()
    process.open()
    return process


def control(raw: Any, consumer: str = "etl") -> Any:
    return raw.find_one({"_id": f"stream:{consumer}"})


def reserved(raw: Any) -> int:
    return raw.count_documents({"reserved": True})


def attempts(raw: Any) -> list[int]:
    return [item["attempts"] for item in raw.find({"q": QUEUE}).sort("_id")]


# --- the run ---------------------------------------------------------------------------------


def test_one_process_at_a_time_runs_a_consumer(make: Make, clock: mongoq.VirtualClock) -> None:
    first, second = make(), make()
    assert is_run(first.open())
    holder = second.open()
    assert not is_run(holder)
    assert (holder.by, holder.until) == (str(first.broker._context.identity), NOW + timedelta(seconds=RUN))
    assert is_run(second.open("other"))
    clock.advance(RUN)
    assert is_run(second.open())


def test_who_was_taken_over_makes_no_claim_and_settles_none(make: Make, clock: mongoq.VirtualClock, raw: Any) -> None:
    first, second = make(), make()
    first.open()
    first.queue.push_many(range(4))
    first.claim(2)
    clock.advance(RUN)
    second.open()
    with pytest.raises(streams.TakenOver):
        first.settle(1)
    with pytest.raises(streams.TakenOver):
        first.claim()
    assert reserved(raw) == 0


def test_a_run_goes_on_as_long_as_it_is_extended_and_ends_when_it_is_given_back(
    make: Make, clock: mongoq.VirtualClock
) -> None:
    first, second = make(), make()
    run = first.open()
    clock.advance(RUN - 1)
    first.perform(streams.extend_lease(first.broker._context, run))
    clock.advance(RUN - 1)
    assert not is_run(second.open())
    first.perform(streams.give_back(first.broker._context, run))
    assert is_run(second.open())
    with pytest.raises(streams.TakenOver):
        first.perform(streams.extend_lease(first.broker._context, run))


def test_a_consumer_keeps_to_its_queue_while_it_holds_items(process: Process, make: Make, raw: Any) -> None:
    process.queue.push(1)
    process.claim()
    process.perform(streams.give_back(process.broker._context, process.run))
    second = make()
    with pytest.raises(mongoq.ArgumentInvalid, match="holds items of queue 'orders'.*release_claims\\('etl'\\)"):
        second.open(queue="refunds")
    process.open()
    process.settle(1)
    process.perform(streams.give_back(process.broker._context, process.run))
    assert second.open(queue="refunds").queue == "refunds"
    assert control(raw)["queue"] == "refunds"


# --- claims ----------------------------------------------------------------------------------


def test_a_claim_takes_the_first_items_in_their_order_under_one_token(process: Process, raw: Any) -> None:
    late = process.queue.push("late", priority=5)
    ids = process.queue.push_many(range(3))
    process.queue.push("later", delay=60)
    claim = process.claim(3)
    assert claim.number == 1
    assert list(claim.ids) == ids
    documents = list(raw.find({"token": claim.token}))
    assert {item["_id"] for item in documents} == set(ids)
    assert {(item["attempts"], item["when"]) for item in documents} == {(1, NOW + timedelta(seconds=LEASE))}
    process.settle(1)
    assert list(process.claim(3, after=1).ids) == [late]


def test_nothing_is_written_when_there_is_nothing(process: Process, raw: Any) -> None:
    before = control(raw)
    process.queue.push(1, delay=60)
    assert process.claim() is None
    assert control(raw) == before


def test_a_paused_queue_hands_out_nothing(process: Process) -> None:
    process.queue.push(1)
    process.queue.pause()
    assert process.claim() is None
    process.queue.resume()
    assert process.claim() is not None


def test_what_came_after_a_time_is_left_there(process: Process, clock: mongoq.VirtualClock) -> None:
    first = process.queue.push(1)
    start = clock.now()
    clock.advance(1)
    process.queue.push(2)
    assert list(process.claim(due=start).ids) == [first]
    process.settle(1)
    assert process.claim(due=start) is None


def test_a_claim_of_many_goes_in_several_commands(process: Process, raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_COMMAND_ITEMS", 3)
    monkeypatch.setattr(by_token, "MAX_COMMAND_ITEMS", 3)
    ids = process.queue.push_many(range(10))
    assert list(process.claim(8).ids) == ids[:8]
    assert reserved(raw) == 8
    assert {item["batch"] for item in raw.find({"reserved": True})} == {process.run.claim.token}
    assert process.affirm() == ids[:8]
    assert process.settle(1) == 8
    assert list(process.claim(8).ids) == ids[8:]


def test_ids_and_dates_of_other_programs_are_claimed_and_settled(process: Process, raw: Any) -> None:
    plain = {"q": QUEUE, "when": NOW, "priority": 0, "attempts": 0}
    odd = [7, "text", Int64(2**40), ObjectId()]
    raw.insert_many([{"_id": id, **plain} for id in odd])
    raw.insert_one({**plain, "_id": {"k": 1}})
    raw.insert_one({**plain, "_id": "list", "when": [NOW]})
    ids: list[Any] = []
    number = 0
    while claim := process.claim(after=number):
        number = claim.number
        ids += claim.ids
        again = process.perform(read_held_documents(process.broker._context, claim.token, claim.ids, {"_id": 1}))
        assert [document["_id"] for document in again or ()] == list(claim.ids)
        process.settle(number)
    assert sorted(map(str, ids)) == sorted(map(str, [*odd, {"k": 1}, "list"]))
    assert raw.count_documents({"q": QUEUE}) == 0


def test_the_number_goes_on_behind_the_one_that_the_caller_knows(process: Process, raw: Any) -> None:
    process.queue.push(1)
    assert process.claim(after=41).number == 42
    assert control(raw)["number"] == 42
    claim = process.perform(streams.take_up_claim(process.broker._context, process.run, after=50))
    assert claim is not None
    assert (claim.number, control(raw)["number"], control(raw)["claim"]["number"]) == (51, 51, 51)
    assert process.settle(42) == 0
    assert process.settle(51) == 1


# --- crashes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("commands", range(1, 9))
def test_a_claim_that_dies_on_its_way_loses_nothing_and_counts_nothing(
    process: Process, make: Make, clock: mongoq.VirtualClock, raw: Any, commands: int
) -> None:
    ids = process.queue.push_many(range(3))
    process.claim(commands=commands)
    clock.advance(RUN)
    heir = make()
    heir.open()
    has_claim = heir.run.claim is not None
    if has_claim:
        assert heir.run.number == 1
        assert heir.affirm() == ids
    else:
        assert reserved(raw) == 0
        assert attempts(raw) == [0, 0, 0]
        assert list(heir.claim().ids) == ids
    assert attempts(raw) == [1, 1, 1]
    assert {item["token"] for item in raw.find({"q": QUEUE})} == {heir.run.claim.token}


def test_what_was_claimed_late_by_a_dead_process_is_never_settled(
    process: Process, make: Make, clock: mongoq.VirtualClock, raw: Any
) -> None:
    process.queue.push_many(range(3))
    flow = streams.next_claim(process.context, process.run, 100, None, after=0)
    request = next(flow)
    while request.method != "update_many":  # type: ignore[union-attr]
        request = flow.send(process.broker._driver._performer.perform(request, []))
    clock.advance(RUN)
    heir = make()
    heir.open()
    process.broker._driver._performer.perform(request, [])  # it has been under way all the time
    assert heir.claim() is None
    assert heir.settle(1) == 0
    assert raw.count_documents({"q": QUEUE, "when": {"$exists": True}}) == 3
    clock.advance(LEASE)
    assert len(heir.claim().ids) == 3


@pytest.mark.parametrize("history", [None, 3600])
@pytest.mark.parametrize("commands", range(1, 5))
def test_settling_that_dies_on_its_way_is_finished_by_the_next_run(
    make: Make, clock: mongoq.VirtualClock, raw: Any, history: int | None, commands: int
) -> None:
    process = make(history=history)
    process.queue.resume()
    process.open()
    process.queue.push_many(range(2), ids=[ObjectId(), ObjectId()])
    process.queue.push(3)
    process.claim()
    process.settle(1, commands=commands)
    clock.advance(RUN)
    heir = make()
    heir.open()
    heir.settle(1)
    assert "claim" not in control(raw)
    assert raw.count_documents({"q": QUEUE, "when": {"$exists": True}}) == 0
    assert raw.count_documents({"q": QUEUE, "processed": {"$exists": True}}) == (3 if history else 2)
    assert raw.count_documents({"q": QUEUE, "payload": {"$exists": True}}) == (3 if history else 0)


@pytest.mark.parametrize("kind", ["request", "reply"])
@pytest.mark.parametrize("loss", ["findAndModify 0", "delete 0", *(f"update {skip}" for skip in range(5))])
def test_a_loss_on_the_network_changes_nothing(
    lossy: tuple[Proxy, Any], clock: mongoq.VirtualClock, raw: Any, kind: Kind, loss: str
) -> None:
    proxy, collection = lossy
    command, _, skip = loss.partition(" ")
    process = Process(collection, clock)
    process.queue.resume()
    ids = process.queue.push_many(range(3))
    proxy.lose(kind, command, skip=int(skip))
    process.open()
    assert list(process.claim().ids) == process.affirm() == ids
    assert attempts(raw) == [1, 1, 1]
    process.settle(1)
    assert raw.count_documents({"q": QUEUE}) == 0
    assert process.claim(after=1) is None
    process.broker.close()


# --- settling --------------------------------------------------------------------------------


def test_history_and_remembered_ids_are_kept_as_by_any_commit(make: Make, clock: mongoq.VirtualClock, raw: Any) -> None:
    process = make(history=3600)
    process.queue.resume()
    process.open()
    remembered, forgotten, plain = process.queue.push_many([1, 2, {"$set": "$payload"}])
    raw.update_one({"_id": remembered}, {"$set": {"once": NOW + timedelta(days=7)}})
    raw.update_one({"_id": forgotten}, {"$set": {"once": NOW + timedelta(seconds=1)}})
    token = process.claim().token
    assert process.settle(1) == 3
    documents = {item["_id"]: item for item in raw.find({"q": QUEUE})}
    assert documents[remembered]["expires"] == NOW + timedelta(days=7)
    assert documents[forgotten]["expires"] == documents[plain]["expires"] == NOW + timedelta(hours=1)
    for item in documents.values():
        assert (item["settled"], item["processed"], item["reserved"]) == (token, NOW, False)
        assert not item.keys() & {"when", "token"}
    assert documents[plain]["payload"] == {"$set": "$payload"}
    process.queue.configure(history=None)
    raw.insert_one({**documents[plain], "_id": ObjectId(), "when": NOW, "once": NOW + timedelta(days=7)})
    raw.update_many({"when": NOW}, {"$unset": {"processed": "", "settled": "", "expires": ""}})
    [id] = process.claim(after=1).ids
    process.settle(2)
    stub = raw.find_one({"_id": id})
    assert stub["expires"] == NOW + timedelta(days=7)
    assert not stub.keys() & {"payload", "token", "when", "by", "batch"}


def test_what_somebody_else_did_with_an_item_stands(
    process: Process, make: Make, clock: mongoq.VirtualClock, raw: Any
) -> None:
    process.queue.push_many(range(4))
    claim = process.claim()
    moved, committed, expired, untouched = claim.ids
    raw.update_one({"_id": moved}, {"$set": {"q": "next", "when": NOW}, "$unset": {"token": ""}})
    raw.delete_one({"_id": committed})
    other_process = make()
    raw.update_one({"_id": expired}, {"$set": {"when": NOW}})
    item = other_process.queue.reserve()
    assert item is not None
    assert item.id == expired
    assert process.affirm() == [untouched]
    assert process.settle(1) == 1
    other_process.queue.commit(item)
    assert [document["_id"] for document in raw.find({"q": {"$exists": True}})] == [moved]


def test_only_the_claim_of_that_number_is_settled(process: Process, raw: Any) -> None:
    process.queue.push(1)
    process.claim()
    assert process.settle(0) == process.settle(2) == 0
    assert reserved(raw) == 1
    assert process.settle(1) == 1
    assert process.settle(1) == 0


def test_leases_go_on_also_of_what_has_lapsed_and_nobody_took(
    process: Process, clock: mongoq.VirtualClock, raw: Any
) -> None:
    ids = process.queue.push_many(range(2))
    process.claim()
    clock.advance(LEASE + 1)
    assert process.affirm() == ids
    assert {item["when"] for item in raw.find({"q": QUEUE})} == {clock.now() + timedelta(seconds=LEASE)}


# --- items that lapse ------------------------------------------------------------------------


def test_an_item_that_lapsed_too_often_gets_a_batch_of_its_own_and_is_then_buried(
    make: Make, clock: mongoq.VirtualClock, raw: Any
) -> None:
    process = make(max_retries=1)
    process.queue.resume()
    ids = process.queue.push_many(range(2))
    batches = []
    for turn in range(8):
        process.open(f"consumer {turn}")  # each of them dies with what it holds
        claim = process.claim()
        batches.append([] if claim is None else list(claim.ids))
        clock.advance(LEASE + 1)
    assert batches[:2] == [ids, ids]
    assert [len(batch) for batch in batches[2:]] == [1, 1, 0, 0, 0, 0]
    assert raw.count_documents({"q": f"{QUEUE}.dead"}) == 2


def test_an_item_that_must_be_alone_is_put_behind_the_others_of_a_claim(
    make: Make, clock: mongoq.VirtualClock, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_COMMAND_ITEMS", 2)
    process = make(max_retries=0)
    process.queue.resume()
    suspects = process.queue.push_many(range(2))
    process.open("first")
    process.claim()
    clock.advance(LEASE + 1)
    plain = process.queue.push_many(range(3))
    process.open()
    start = clock.now()
    batches = []
    for number in range(1, 9):
        claim = process.claim(after=number - 1, due=start)
        if claim is None:
            break
        batches.append(set(claim.ids))
        process.settle(claim.number)
    assert all(len(batch) == 1 or not batch & set(suspects) for batch in batches)
    assert set().union(*batches) == {*suspects, *plain}


# --- what a read does not show ---------------------------------------------------------------


def test_what_a_read_does_not_show_is_not_missed(process: Process) -> None:
    ids = process.queue.push_many(range(5))
    claim = process.claim()
    reads = 0

    def hiding(reply: Any) -> Any:
        nonlocal reads
        if isinstance(reply, dict) and "firstBatch" in reply:
            reads += 1
            reply["firstBatch"] = [each for each in reply["firstBatch"] if reads > 2 or each["_id"] != ids[3]]
        return reply

    flow = read_held_documents(process.broker._context, claim.token, claim.ids, {"_id": 1})
    documents = process.perform(flow, change_reply=hiding)
    assert documents is not None
    assert [document["_id"] for document in documents] == ids
    assert reads == 3


def test_more_than_one_reply_holds_is_to_be_asked_for_in_parts(process: Process, raw: Any) -> None:
    process.queue.push_many(["x" * 6_000_000] * 3)
    claim = process.claim()
    read = {"payload": 1}
    assert process.perform(read_held_documents(process.broker._context, claim.token, claim.ids, read)) is None
    some = process.perform(read_held_documents(process.broker._context, claim.token, claim.ids[:2], read))
    assert some is not None
    assert len(some) == 2


# --- release_claims --------------------------------------------------------------------------


def test_claims_are_given_back_at_once(process: Process, make: Make, raw: Any) -> None:
    ids = process.queue.push_many(range(3))
    process.claim()
    broker = make().broker
    assert broker.release_claims("etl") == 3
    assert (reserved(raw), attempts(raw)) == (0, [0, 0, 0])
    assert "claim" not in control(raw)
    assert broker.release_claims("etl") == 0
    assert broker.release_claims("nobody") == 0
    with pytest.raises(streams.TakenOver) as caught:
        process.settle(1)
    assert caught.value.held.by is None
    assert raw.count_documents({"q": QUEUE}) == 3
    heir = make()
    assert heir.open().number == 1
    assert (heir.claim().number, list(heir.run.claim.ids)) == (2, ids)


def test_a_claim_under_way_is_given_back_as_well(process: Process, raw: Any, make: Make) -> None:
    process.queue.push_many(range(3))
    process.claim(commands=4)
    assert reserved(raw) == 3
    assert make().broker.release_claims("etl") == 3
    assert (reserved(raw), attempts(raw)) == (0, [0, 0, 0])


@pytest.mark.parametrize("commands", range(1, 4))
def test_giving_back_that_dies_on_its_way_is_finished_by_the_next_call(
    process: Process, make: Make, raw: Any, commands: int
) -> None:
    process.queue.push_many(range(3))
    process.claim()
    dying = make()
    dying.broker.ping()
    dying.broker.ensure_indexes()
    dying.perform(streams.release_consumer(dying.broker._context, "etl"), commands=commands)
    make().broker.release_claims("etl")
    assert (reserved(raw), attempts(raw)) == (0, [0, 0, 0])
    assert "claim" not in control(raw)


def test_what_the_sink_has_moved_is_not_given_back(process: Process, make: Make, raw: Any) -> None:
    ids = process.queue.push_many(range(2))
    process.claim()
    raw.update_one({"_id": ids[0]}, {"$set": {"q": "next"}, "$unset": {"token": ""}})
    assert make().broker.release_claims("etl") == 1


@pytest.mark.parametrize("name", ["", " ", "a\0b", "x" * 121, "\ud800", 5, None])
def test_a_consumer_has_a_name(process: Process, name: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="consumer"):
        process.broker.release_claims(name)


async def test_asyncio_gives_claims_back_too(process: Process, uri: str, database: str) -> None:
    process.queue.push(1)
    process.claim()
    async with mongoq.connect_async(uri, database=database) as broker:
        assert await broker.release_claims("etl") == 1


@pytest.mark.parametrize("on_expired", ["history", "dead"])
def test_a_claim_leaves_out_items_that_were_not_started_in_time(
    make: Make, clock: mongoq.VirtualClock, raw: Any, on_expired: Any
) -> None:
    process = make(on_expired=on_expired)
    process.queue.push_many(range(6), expires=[1, None, 5, 1, 5, None])
    process.open()
    clock.advance(1)
    claim = process.claim()
    payloads = [raw.find_one({"_id": id})["payload"] for id in claim.ids]
    assert sorted(payloads) == [1, 2, 4, 5]
    assert raw.count_documents({"start_by": {"$exists": True}}) == 0
    letters = process.queue.dead.peek(9) if on_expired == "dead" else []
    assert [(letter.payload, letter.origin and letter.origin.attempts) for letter in letters] == [
        (n, 0) for n in (0, 3) if on_expired == "dead"
    ]
    clock.advance(60)
    assert process.settle(claim.number) == 4
    assert process.queue.size() == 0


def test_a_claim_of_expired_items_alone_is_none(make: Make, clock: mongoq.VirtualClock) -> None:
    process = make()
    process.queue.push_many(range(3), expires=1)
    process.open()
    clock.advance(1)
    assert process.claim() is None
    assert process.queue.size() == 0


# --- sequences -------------------------------------------------------------------------------


@pytest.mark.parametrize("history", [None, 3600])
def test_the_next_items_of_sequences_follow_a_settled_claim(make: Make, raw: Any, history: Any) -> None:
    process = make(history=history)
    process.queue.push_many(range(9), sequences=["a", "b", None] * 3)
    process.open()
    settled: list[int] = []
    while claim := process.claim(after=len(settled)):
        payloads = [raw.find_one({"_id": id})["payload"] for id in claim.ids]
        assert process.settle(claim.number) == len(payloads)
        settled += payloads
    assert [number for number in settled if number % 3 == 0] == [0, 3, 6]
    assert [number for number in settled if number % 3 == 1] == [1, 4, 7]
    assert len(settled) == 9
    assert not list(raw.find({"$or": [{"place": {"$exists": True}}, {"_id": {"$regex": "^sequence:"}}]}))


@pytest.mark.parametrize("on_expired", ["history", "dead"])
def test_a_claim_settles_expired_items_of_sequences_and_the_next_ones_follow(
    make: Make, clock: mongoq.VirtualClock, raw: Any, on_expired: Any
) -> None:
    process = make(on_expired=on_expired)
    process.queue.push_many(range(8), sequences=["a", "b", None, "c"] * 2, expires=[1, 1, 1, 1, None, 1, None, None])
    process.open()
    clock.advance(1)
    settled: list[int] = []
    while claim := process.claim(after=process.run.number):
        settled += [raw.find_one({"_id": id})["payload"] for id in claim.ids]
        process.settle(claim.number)
    assert sorted(settled) == [4, 6, 7]
    expired = [letter.payload for letter in process.queue.dead.peek(9)]
    assert sorted(expired) == ([0, 1, 2, 3, 5] if on_expired == "dead" else [])
    assert not list(raw.find({"$or": [{"place": {"$exists": True}}, {"_id": {"$regex": "^sequence:"}}]}))
