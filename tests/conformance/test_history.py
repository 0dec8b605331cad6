"""History with filters and states, on every shell: whole, in order, and stable while items come and go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

import mongoq
from tests.shells import Shell


async def _processed(shell: Shell, payloads: list[Any], **options: Any) -> Any:
    """A queue that has processed these, a second apart."""
    queue = shell.queue(history=3600, **options)
    for payload in payloads:
        await queue.push(payload)
        await queue.pop()
        shell.clock.advance(1)
    return queue


async def _read(queue: Any, **options: Any) -> list[Any]:
    return [item.payload async for item in queue.history(**options)]


ORDERS = [
    {"n": 0, "who": {"name": "Ada"}, "tags": ["a", "b"]},
    {"n": 1, "who": {"name": "ada"}, "tags": []},
    {"n": 2, "who": {"name": "Alan"}, "lines": [{"sku": "nut", "q": 5}, {"sku": "bolt", "q": 1}]},
    {"n": 3.5, "who": None, "tags": ["b", "c"]},
]


FILTERS: list[tuple[Any, list[Any]]] = [
    ({"n": 1}, [1]),
    ({"n": {"$gte": 1, "$lt": 3}}, [1, 2]),
    ({"n": {"$ne": 1}}, [0, 2, 3.5]),
    ({"who.name": "Ada"}, [0]),
    ({"who.name": {"$regex": "^ad", "$options": "i"}}, [0, 1]),
    ({"who": {"name": "Alan"}}, [2]),
    ({"who": None}, [3.5]),
    ({"tags": {"$exists": False}}, [2]),
    ({"tags": {"$all": ["b"]}}, [0, 3.5]),
    ({"tags": {"$size": 0}}, [1]),
    ({"tags": {"$in": ["a", "c"]}}, [0, 3.5]),
    ({"n": {"$not": {"$gt": 1}}}, [0, 1]),
    ({"lines": {"$elemMatch": {"sku": "nut", "q": {"$gt": 3}}}}, [2]),
    ({"lines": {"$elemMatch": {"sku": "bolt", "q": {"$gt": 3}}}}, []),
    ({"tags": {"$elemMatch": {"$gt": "b"}}}, [3.5]),
    ({"$or": [{"n": 0}, {"$and": [{"n": 2}, {"who.name": "Alan"}]}]}, [0, 2]),
    ({"$nor": [{"n": {"$gt": 1}}, {"who.name": "ada"}]}, [0]),
    ({"who.name": {"$not": {"$regex": "^A"}}}, [1, 3.5]),
    ({"tags": {"$nin": ["a", "c"]}, "n": {"$type": "int"}}, [1, 2]),
    ({"n": {"$mod": [2, 0]}, "tags": {"$exists": True}}, [0]),
]


async def test_a_filter_is_evaluated_by_the_server(shell: Shell) -> None:
    queue = await _processed(shell, ORDERS)
    for where, expected in FILTERS:
        numbers = [payload["n"] for payload in await _read(queue, where=where, page=2)]
        assert numbers == expected, where


DOLLARS: list[Any] = ["$n", "$$NOW", {"$gt": 0}, {"x": {"$where": "1"}}, {"$expr": 1}, ["$x"]]


async def test_values_with_dollars_are_compared_literally(shell: Shell) -> None:
    queue = await _processed(shell, [{"v": operand, "n": n} for n, operand in enumerate([*DOLLARS, 5, "n"])])
    for value in DOLLARS:
        assert [payload["v"] for payload in await _read(queue, where={"v": {"$eq": value}})] == [value]


async def test_a_filter_without_a_path_is_about_the_payload_itself(shell: Shell) -> None:
    queue = await _processed(shell, [1, 5, "text", {"n": 7}, None, 9])
    assert await _read(queue, where={"$gt": 3}) == [5, 9]
    assert await _read(queue, where={"$or": [{"$eq": "text"}, {"n": 7}]}) == ["text", {"n": 7}]


async def test_a_filter_does_not_leave_the_queue_and_the_range(shell: Shell) -> None:
    await _processed(shell, [{"n": 1}], name="other")
    start = shell.clock.now()
    queue = await _processed(shell, [{"n": n % 2} for n in range(6)])
    where = {"$or": [{"n": 1}, {"q": "other"}]}
    assert len(await _read(queue, where=where)) == 3
    inner = {"since": start + timedelta(seconds=1), "until": start + timedelta(seconds=5)}
    assert len(await _read(queue, where=where, page=1, **inner)) == 2


@pytest.mark.every_shell
async def test_items_processed_while_one_iterates_follow_once(shell: Shell) -> None:
    queue = shell.queue(history=3600)
    for n in range(40):
        await queue.push(n)
    for _ in range(20):
        await queue.pop()
    shell.clock.advance(1)
    payloads = []
    async for item in queue.history(page=3):
        payloads.append(item.payload)
        if len(payloads) <= 20:
            await queue.pop()
            shell.clock.advance(0.001)
    assert sorted(payloads) == list(range(40))
    assert payloads[20:] == list(range(20, 40))


async def test_ids_that_do_not_sort_as_they_were_processed_are_no_hindrance(shell: Shell) -> None:
    queue = shell.queue(history=3600)
    for n in range(12):
        await queue.push(n, priority=-n)
    for n in range(12):
        await queue.pop()
        shell.clock.advance(n % 2)
    for page in (1, 2, 5):
        numbers = await _read(queue, page=page)
        assert len(numbers) == 12
        assert [n // 2 for n in numbers] == sorted((n // 2 for n in range(12)), reverse=True)


async def _live(shell: Shell) -> Any:
    """A queue with items of three priorities in all live states."""
    queue = shell.queue(history=3600, dead=None)
    for n in range(4):
        await queue.push({"n": n}, priority=-50 - n)
        await queue.reserve(lease=1 if n % 2 else 500 + n)
    shell.clock.advance(2)
    for n in range(30):
        await queue.push({"n": 10 + n}, priority=(5, -5, 0)[n % 3], delay=0 if n % 2 else 10 * n + 1)
    return queue


@pytest.mark.every_shell
async def test_live_items_come_as_they_would_be_handed_out(shell: Shell) -> None:
    queue = await _live(shell)
    for state, size in {"ready": 15, "scheduled": 15, "reserved": 2, "expired": 2, None: 34}.items():
        expected = [item.id for item in await queue.peek(100, state=state)]
        assert len(expected) == size
        for page in (1, 4, 100):
            ids = []
            async for item in queue.history(state=state, page=page):
                ids.append(item.id)
                assert len(ids) <= size
            assert ids == expected


async def test_live_items_by_filter_and_by_when_they_are_due(shell: Shell) -> None:
    queue = await _live(shell)
    now = shell.clock.now()
    since, until = now + timedelta(seconds=50), now + timedelta(seconds=200)
    due = [item.due async for item in queue.history(state="scheduled", since=since, until=until, page=2)]
    assert len(due) == 7
    assert all(since <= when < until for when in due)
    where = {"n": {"$gte": 20, "$lt": 26}}
    assert sorted([payload["n"] for payload in await _read(queue, state="ready", where=where, page=1)]) == [21, 23, 25]
    leases = [item.lease_until async for item in queue.history(state="reserved", until=now + timedelta(seconds=499))]
    assert leases == [now + timedelta(seconds=498)]


async def test_ready_items_that_are_worked_on_meanwhile_come_at_most_once(shell: Shell) -> None:
    queue = shell.queue(max_retries=None)
    for n in range(20):
        await queue.push(n)
    payloads = []
    async for item in queue.history(state="ready", page=3):
        payloads.append(item.payload)
        shell.clock.advance(1)
        await queue.rollback(await queue.reserve())
        assert len(payloads) <= 20
    assert sorted(payloads) == list(range(20))
    assert await queue.size() == 20


async def test_a_document_without_priority_does_not_end_the_iteration(shell: Shell) -> None:
    queue = shell.queue()
    await queue.push(1)
    shell.raw.insert_many([{"q": "orders", "when": shell.clock.now(), "payload": 0, "reserved": False} for _ in "ab"])
    assert await _read(queue, state=None, page=1) == [0, 0, 1]


NAIVE = datetime(2024, 1, 1)
AWARE = datetime(2024, 1, 1, tzinfo=UTC)


WRONG: list[tuple[Any, str]] = [
    ({"since": NAIVE}, "since"),
    ({"until": "today"}, "until"),
    ({"since": AWARE, "until": AWARE - timedelta(seconds=1)}, "until"),
    ({"where": {"a": {"$where": "1"}}}, "where.a"),
    ({"where": []}, "where"),
    ({"state": "dead"}, "state"),
    ({"state": ["ready"]}, "state"),
    ({"page": 0}, "page"),
    ({"page": True}, "page"),
]


async def test_what_cannot_be_read_is_refused_by_name(shell: Shell) -> None:
    for options, argument in WRONG:
        with pytest.raises(mongoq.ArgumentInvalid) as caught:
            await _read(shell.queue(), **options)
        assert caught.value.argument == argument


async def test_a_pattern_that_the_server_refuses_is_the_callers_mistake(shell: Shell) -> None:
    where, message = {"a": {"$regex": "("}}, r"where: the server refuses it: Regular expression .*\)$"
    for reads in (_read(shell.queue(), where=where), shell.queue().replay(to="next", where=where)):
        with pytest.raises(mongoq.FilterInvalid, match=message) as caught:
            await reads
        assert caught.value.argument == "where"


class Order(BaseModel):
    n: int


@pytest.mark.every_shell
async def test_history_is_typed_and_shows_what_does_not_fit(shell: Shell) -> None:
    await _processed(shell, [{"n": "1"}, {"n": "x"}])
    typed = shell.queue(model=Order)
    assert await _read(typed, where={"n": "1"}) == [Order(n=1)]
    with pytest.raises(mongoq.PayloadInvalid) as caught:
        await _read(typed)
    assert caught.value.item.payload == {"n": "x"}


async def test_an_id_of_another_program_does_not_end_the_iteration(shell: Shell) -> None:
    queue = shell.queue(history=3600)
    await queue.push_many(range(3))
    for id in (7, "seven"):
        envelope = shell.raw.find_one({"q": "orders"})
        shell.raw.insert_one({**envelope, "_id": id, "payload": id})
    await queue.commit_many(await queue.reserve_many(9))
    assert {item.payload async for item in queue.history(page=1)} == {0, 1, 2, 7, "seven"}


async def test_a_queue_without_history_says_how_to_keep_one(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mongoq.history")
    queue = shell.queue()
    await queue.push(1)
    await queue.pop()
    assert await _read(queue) == []
    assert (await queue.replay(dry_run=True)).found == 0
    assert len(caplog.records) == 2
    for record in caplog.records:
        assert "keeps no history" in record.getMessage()
        assert 'queue.configure(history="7d")' in record.getMessage()
        assert vars(record)["mongoq_queue"] == queue.name
    caplog.clear()
    await queue.configure(history="7d")
    assert await _read(queue) == []
    assert await _read(queue, state=None) == []
    assert caplog.records == []
