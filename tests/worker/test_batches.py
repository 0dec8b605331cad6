"""Handlers of many items at once."""

from __future__ import annotations

from typing import Any

import pytest

import mongoq
from tests.worker.conftest import Desk, every_kind

QUICK = mongoq.Fixed(0.01)


def test_a_batch_is_a_list_of_payloads_and_none_commits_them_all(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.configure(history=3600)
    queue.push_many(range(25))
    batches: list[list[int]] = []

    async def handle(payloads: Any, job: Any) -> None:
        assert [item.payload for item in job.items] == payloads
        batches.append(payloads)

    desk.consume("orders", handle, batch=10)
    desk.run()
    assert sorted(n for batch in batches for n in batch) == list(range(25))
    assert max(map(len, batches)) == 10
    assert [item.attempts for item in queue.history()] == [1] * 25


@every_kind
def test_each_item_has_an_outcome_of_its_own(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many(["fine", "retry", "dead", "move", "error", "drop"])
    outcomes = {
        "fine": None,
        "retry": mongoq.Retry(),
        "dead": mongoq.Dead("dead"),
        "move": mongoq.Move("next"),
        "error": ValueError("bad"),
        "drop": mongoq.Drop(),
    }
    runs: list[str] = []

    async def handle(payloads: Any) -> Any:
        runs.extend(payloads)
        return [outcomes[payload] for payload in payloads]

    desk.consume("orders", handle, batch=6, retry=QUICK, max_retries=2)
    desk.run()
    assert sorted(runs) == sorted([*outcomes, *["retry", "error"] * 2])
    letters = {letter.payload: letter for letter in queue.dead.peek(9)}
    assert {name: letter.origin.reason for name, letter in letters.items()} == {
        "dead": "dead",
        "retry": "retries exhausted",
        "error": "retries exhausted",
    }
    assert letters["error"].error.message == "bad"
    assert [item.payload for item in desk.broker.queue("next").peek(9)] == ["move"]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([None], "a batch of 3 items got 1 outcomes"),
        (True, "None or a list"),
    ],
)
def test_a_wrong_return_fails_that_batch_and_the_loop_goes_on(
    desk: Desk, queue: mongoq.Queue[Any], returned: Any, message: str
) -> None:
    queue.push_many([1, 2, 3])
    runs: list[int] = []

    async def handle(payloads: Any) -> Any:
        runs.extend(payloads)
        return returned if len(payloads) == 3 else None

    desk.consume("orders", handle, batch=3, prefetch=3, retry=QUICK, max_retries=0)
    desk.run()
    assert sorted(runs) == [1, 2, 3]
    letters = queue.dead.peek(9)
    assert len(letters) == 3
    assert {letter.error.type for letter in letters} == {"mongoq.errors.OutcomeInvalid"}
    assert all(message in letter.error.message for letter in letters)
    queue.push(4)
    desk.run()
    assert runs[-1] == 4


def test_a_wrong_entry_fails_its_item_alone(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many([1, 2, 3])

    async def handle(payloads: Any) -> Any:
        return ["done" if payload == 2 else None for payload in payloads]

    desk.consume("orders", handle, batch=3, prefetch=3, max_retries=0)
    desk.run()
    [letter] = queue.dead.peek(9)
    assert letter.payload == 2
    assert "an entry for an item is None, an outcome or an exception, not str" in letter.error.message


def test_an_exception_fails_the_whole_batch(desk: Desk, queue: mongoq.Queue[Any]) -> None:
    queue.push_many([1, 2, 3])
    sizes = []

    async def handle(payloads: Any) -> Any:
        sizes.append(len(payloads))
        raise ValueError("all of them")

    desk.consume("orders", handle, batch=3, retry=QUICK, max_retries=1)
    desk.run()
    assert sum(sizes) == 6
    assert [letter.error.message for letter in queue.dead.peek(9)] == ["all of them"] * 3
