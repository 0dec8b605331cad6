"""Troubles: what is wrong with a queue, and which queue is to be looked at first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mongoq.protocol.history.pages import BoundedCount
from mongoq.protocol.insight import QueueInsight
from mongoq.web.pages.troubles import LONG_WAIT, QueueKind, find_troubles, sort_by_trouble

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
ONE = BoundedCount(1)


def make_queue(name: str = "orders", *, waited: timedelta | None = None, **state: Any) -> QueueInsight:
    """A queue with a consumer; an item of it waits for a time."""
    due = {} if waited is None else {"ready": ONE, "oldest_due": NOW - waited}
    return QueueInsight(name, NOW, **{"consumers": 1, "dead_queue": f"{name}.dead", **due, **state})


def test_the_queue_to_look_at_first_comes_first() -> None:
    long = LONG_WAIT + timedelta(seconds=1)
    queues = [
        make_queue("fine", waited=timedelta(seconds=1)),
        make_queue("paused", paused=True),
        make_queue("unconsumed", scheduled=ONE, consumers=0),
        make_queue("expired", expired=ONE),
        make_queue("letters", dead=ONE),
        make_queue("letters.dead", ready=ONE, dead_queue=None, consumers=0),
        make_queue("errors", ready=ONE, consumers=0),
        make_queue("failing"),
        make_queue("late", waited=long),
        make_queue("later", waited=2 * long, dead=ONE),
        make_queue("at the limit", waited=LONG_WAIT),
    ]
    judged = sort_by_trouble(queues, errors={"errors"}, is_failing={"failing", "letters.dead"}.__contains__)
    assert [queue.name for queue, _kind, _troubles in judged] == [
        "later", "late", "failing", "errors", "letters", "expired", "unconsumed", "paused", "at the limit", "fine",
        "letters.dead",
    ]  # fmt: skip
    kinds = {queue.name: kind for queue, kind, _troubles in judged}
    assert (kinds["errors"], kinds["letters.dead"], kinds["letters"]) == ("errors", "dead", "queue")


def test_a_dead_queue_with_another_name_is_known_by_its_owner() -> None:
    judged = sort_by_trouble([make_queue("a", dead_queue="lost"), make_queue("lost", ready=ONE, consumers=0)])
    assert [(queue.name, kind, troubles) for queue, kind, troubles in judged] == [
        ("a", "queue", []), ("lost", "dead", []),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "troubles"),
    [
        ("queue", ["waits for long", "no consumer", "paused"]),
        ("errors", ["failed items", "paused"]),
        ("dead", ["paused"]),
    ],
)
def test_letters_wait_without_a_consumer(kind: QueueKind, troubles: list[str]) -> None:
    queue = make_queue(waited=timedelta(days=9), consumers=0, paused=True)
    assert find_troubles(queue, kind) == troubles


def test_blocked_items_wait_for_others_and_not_for_a_consumer() -> None:
    waiting = make_queue(blocked=ONE, reserved=ONE)
    assert find_troubles(waiting, "queue") == []
    stuck = make_queue(blocked=ONE, consumers=0)
    assert find_troubles(stuck, "queue") == ["stuck sequences"]
