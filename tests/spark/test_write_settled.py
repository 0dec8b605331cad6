"""Rows that hold a reservation are moved or committed under their fence, and others are pushed."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

from mongoq.errors import ArgumentInvalid, BatchIncomplete
from mongoq.spark import RowRefused, RowsLost
from tests.proxy import Kind, Proxy
from tests.spark.tables import Target

HELD = "_id string, _token string, _to string, n int"
HOUR = timedelta(hours=1)


@pytest.fixture
def queue(target: Target) -> Any:
    return target.broker.queue("orders")


def _reserved(queue: Any, number: int, **options: Any) -> list[Any]:
    queue.push_many([{"n": n, "at": datetime(2026, 1, 1, tzinfo=UTC)} for n in range(number)], **options)
    items: list[Any] = queue.reserve_many(number)
    return items


def _row(item: Any, *rest: Any) -> tuple[Any, ...]:
    return (str(item.id), str(item.token), *rest)


def test_rows_are_moved_with_their_payload_and_committed_without_a_queue(target: Target, queue: Any) -> None:
    first, second, third = _reserved(queue, 3, priority=4, headers={"h": 1})
    target.write(HELD, [_row(first, "priced", 10), _row(second, None, 11), _row(third, "other", 12)], to=None)
    by_queue = {each["q"]: each for each in target.documents}
    assert set(by_queue) == {"priced", "other"}
    assert by_queue["priced"]["_id"] == first.id
    assert by_queue["priced"]["payload"] == {"n": 10}
    assert (by_queue["priced"]["priority"], by_queue["priced"]["headers"], by_queue["priced"]["attempts"]) == (
        4,
        {"h": 1},
        0,
    )
    assert "token" not in by_queue["priced"]
    assert target.broker.queue("other").reserve().payload == {"n": 12}


def test_without_payload_columns_a_move_keeps_the_payload(target: Target, queue: Any) -> None:
    [item] = _reserved(queue, 1)
    target.write("_id string, _token string", [_row(item)], to="priced")
    assert target.payloads == [item.payload]


def test_a_commit_keeps_the_payload_in_the_history(target: Target, queue: Any) -> None:
    queue.configure(history=HOUR)
    [item] = _reserved(queue, 1)
    target.write(HELD, [_row(item, None, 99)], to=None)
    [document] = target.documents
    assert document["payload"] == item.payload
    assert document["settled"] == item.token
    assert document["expires"] - document["processed"] == HOUR


def test_a_commit_leaves_a_remembered_id(target: Target, queue: Any) -> None:
    id = ObjectId()
    queue.push({"n": 1}, id=id)
    item = queue.reserve()
    target.write(HELD, [_row(item, None, 1)], to=None)
    queue.push({"n": 1}, id=id)
    assert queue.size() == 0


def test_a_move_goes_as_the_row_says(target: Target, queue: Any) -> None:
    items = _reserved(queue, 3, priority=4)
    ddl = "_id string, _token string, _delay interval day to second, _priority int, _headers string, _key string"
    rows = [_row(item, HOUR, 9, '{"a": 1}', f"k{place}") for place, item in enumerate(items)]
    target.write(ddl, rows[:1], to="a")
    target.write(ddl, rows[1:2], to="b", carry='["priority", "headers", "key"]')
    target.write(ddl, rows[2:], to="c", priority=-1)
    by_queue = {each["q"]: each for each in target.documents}
    assert [by_queue[q]["priority"] for q in "abc"] == [4, 9, -1]
    assert [by_queue[q].get("headers") for q in "abc"] == [None, {"a": 1}, None]
    assert [by_queue[q].get("key") for q in "abc"] == [None, "k1", None]
    assert all(by_queue[q]["when"] - target.store.now > HOUR - timedelta(seconds=5) for q in "abc")


def test_a_batch_written_again_moves_nothing_twice(
    target: Target, queue: Any, caplog: pytest.LogCaptureFixture
) -> None:
    items = _reserved(queue, 5)
    rows = [_row(item, "priced", place) for place, item in enumerate(items)]
    target.write(HELD, rows[:3])  # and then the task died
    caplog.clear()
    with caplog.at_level(logging.WARNING, "mongoq.spark"):
        target.write(HELD, rows[::-1])
    assert "of 3 of the rows the reservation is over: settled before" in caplog.text
    assert str(items[0].id) in caplog.text
    assert sorted(each["n"] for each in target.payloads) == [0, 1, 2, 3, 4]
    assert {each["q"] for each in target.documents} == {"priced"}


def test_what_others_hold_is_left_to_them(target: Target, queue: Any) -> None:
    queue.push({"n": 0})
    stale = queue.reserve(lease=0.001)
    item = queue.reserve(wait=5)
    assert item.id == stale.id
    target.write(HELD, [_row(stale, "priced", 1)])
    assert queue.counts().reserved == 1
    queue.commit(item)


def test_lost_rows_may_fail_the_task_when_the_rest_is_settled(target: Target, queue: Any) -> None:
    first, second = _reserved(queue, 2)
    queue.commit(first)
    rows = [_row(first, "priced", 0), _row(second, "priced", 1)]
    with pytest.raises(RowsLost, match="of 1 of the rows the reservation is over") as caught:
        target.write(HELD, rows, lost="fail")
    assert caught.value.item_ids == [first.id]
    assert target.payloads == [{"n": 1}]


def test_one_that_fails_keeps_none_of_the_others(target: Target, queue: Any) -> None:
    target.broker.queue("priced").push({"n": -1}, key="taken")
    first, second, third = _reserved(queue, 3)
    ddl = "_id string, _token string, _key string, n int"
    rows = [_row(first, "taken", 0), _row(second, "free", 1), _row(third, None, 2)]
    with pytest.raises(BatchIncomplete, match=r"1 of 3 items of queue 'orders' failed") as caught:
        target.write(ddl, rows, to="priced", carry='["key"]')
    assert list(caught.value.failed) == [first.id]
    assert sorted(each["payload"]["n"] for each in target.documents if each["q"] == "priced") == [-1, 1, 2]
    queue.commit(first)


def test_items_of_several_queues_are_settled_each_as_its_row_says(target: Target, queue: Any) -> None:
    other_queue = target.broker.queue("others")
    other_queue.configure(history=HOUR)
    items = [*_reserved(queue, 2), *_reserved(other_queue, 2)]
    target.write(HELD, [_row(item, None, 0) for item in items], to=None)
    assert (queue.size("processed"), other_queue.size("processed")) == (0, 2)
    assert {each["q"] for each in target.documents} == {"others"}


def test_pushed_and_settled_rows_go_together(target: Target, queue: Any) -> None:
    [item] = _reserved(queue, 1)
    rows = [_row(item, "priced", 1), (None, None, "lines", 2), (str(ObjectId()), None, "lines", 3)]
    for _ in range(2):
        target.write(HELD, rows)
    assert sorted((each["q"], each["payload"]["n"]) for each in target.documents) == [
        ("lines", 2), ("lines", 3), ("priced", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["request", "reply"])
def test_rows_whose_message_is_lost_are_settled_and_pushed_once(
    lossy_target: tuple[Proxy, Target], queue: Any, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    proxy, target = lossy_target
    rows = [*(_row(item, "priced", n) for n, item in enumerate(_reserved(queue, 3))), (None, None, "lines", 9)]
    for command in ("update", "insert"):
        proxy.lose(kind, command)
    with caplog.at_level(logging.WARNING, "mongoq.spark"):
        target.write(HELD, rows)
    assert proxy.lost == 2
    assert "the reservation is over" not in caplog.text
    assert sorted((each["q"], each["payload"]["n"]) for each in target.documents) == [
        ("lines", 9), ("priced", 0), ("priced", 1), ("priced", 2),
    ]  # fmt: skip


def test_a_letter_that_a_row_commits_lets_its_sequence_go_on(target: Target) -> None:
    queue = target.broker.queue("orders", on_dead="hold")
    queue.push_many([{"n": 0}, {"n": 1}], sequence="a")
    queue.bury(queue.reserve())
    assert queue.reserve() is None
    target.write(HELD, [_row(queue.dead.reserve(), None, 0)], to=None)
    assert queue.pop().payload == {"n": 1}


def test_a_row_that_is_pushed_needs_a_payload(target: Target) -> None:
    with pytest.raises(RowRefused, match="column 'payload': no column makes the payload"):
        target.write("_id string, _token string", [(None, None)])


def test_one_item_is_settled_by_one_row(target: Target, queue: Any) -> None:
    [item] = _reserved(queue, 1)
    rows = [_row(item, "lines", 1), _row(item, "lines", 2)]
    for batches in ([rows], [rows[:1], rows[1:]]):
        with pytest.raises(RowRefused, match="row 1 of .*'_token': another row of this task settles the same item"):
            target.write(HELD, *batches)


def test_ids_and_tokens_are_those_of_mongoq(target: Target) -> None:
    token = "6b02ff4743c01a34cb154a61"
    for id, one, sentence in [
        ("five", token, "column '_id': it is no ObjectId in hex"),
        (token, "x", "column '_token': it is no ObjectId in hex"),
        (None, token, "column '_id': it is null beside a _token"),
    ]:
        with pytest.raises(RowRefused, match=sentence):
            target.write(HELD, [(id, one, "priced", 1)])


def test_a_batch_says_whether_it_settles(target: Target, queue: Any) -> None:
    [item] = _reserved(queue, 1)
    rows = [(str(ObjectId()), None, None, 0), _row(item, None, 1)]
    with pytest.raises(RowRefused, match="row 1 of .*'_token': somebody holds this item: with settle=true it is moved"):
        target.write(HELD, rows, settle=None)
    target.write(HELD, [_row(item, None, 1)], to="copies", settle="false")
    assert [each["payload"] for each in target.documents if each["q"] == "copies"] == [{"n": 1}]
    target.write(HELD, [_row(item, None, 1)], to="priced")
    assert [each["_id"] for each in target.documents if each["q"] == "priced"] == [item.id]


def test_the_items_of_a_pipelines_trail_keep_it(target: Target, queue: Any) -> None:
    [item] = _reserved(queue, 1)
    target.store.collection.update_one({"_id": item.id}, {"$set": {"hops": 3, "trail": [{"queue": "raw"}]}})
    target.write(HELD, [_row(item, "priced", 1)])
    [document] = target.documents
    assert (document["hops"], document["trail"]) == (4, [{"queue": "raw"}])


def test_a_key_for_a_settled_row_is_taken_only_on_request(target: Target) -> None:
    with pytest.raises(ArgumentInvalid, match="column '_key' is to be a string"):
        target.write("_id string, _token string, _key int", carry='["key"]')
    target.write("_id string, _token string, _key int")
