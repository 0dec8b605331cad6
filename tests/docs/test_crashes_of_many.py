"""The second table of crashes in ``docs/envelope.md``, row by row: operations on many items, and what comes after."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.errors import ExecutionTimeout

import mongoq
from tests.docs.crashing import LEASE, Prepare, Row, check, id_of, living, named, rows_of
from tests.docs.rows_of_many import (
    ROWS,
    Order,
    move_large,
    pushed,
    replay,
    reserve_some_exhausted,
    reserve_some_misfits,
    reserve_suspects,
    settle,
    transaction,
)


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_what_a_crash_leaves_is_what_the_page_says(raw: Any, row: Row) -> None:
    check(raw, row)


def test_the_page_has_these_rows_and_no_others() -> None:
    assert rows_of("many items") == [row.name for row in ROWS]


AGAIN = (
    "`push_many` in two commands",
    "`push` to a topic of one queue",
    "`push` to a topic of several queues",
    "`push_many` to a topic",
    "`replay`",
    "`replay` of chosen ids",
    "`dead.replay` of two pages",
    "`purge`",
)


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in AGAIN], ids=named)
def test_what_was_killed_is_completed_by_the_same_call(raw: Any, row: Row) -> None:
    for commands in range(len(row.expected)):
        with living(raw) as process:
            operation = row.prepare(process)
            process.dies_after(commands, operation)
            for session in process.sessions:  # as the server does after a minute
                session.end_session()
            operation()
            assert row.look(process) == row.expected[-1], f"killed after {commands} commands"


def test_a_replay_that_was_killed_does_not_copy_again_what_was_done_meanwhile(raw: Any) -> None:
    with living(raw) as process:
        again = replay(process)
        assert process.dies_after(3, again)
        queue = process.another().queue("orders")
        queue.commit_many(queue.reserve_many(10))
        assert again().pushed == 1


@pytest.mark.parametrize("commands", [2, 3])
def test_what_a_killed_claim_of_many_took_gets_one_more_run_each_and_alone(raw: Any, commands: int) -> None:
    with living(raw) as process:
        queue = pushed(process, max_retries=0)
        process.dies_after(commands, lambda: queue.reserve_many(3))
        for _ in range(3):
            process.clock.advance(LEASE + 1)
            (item,) = queue.reserve_many(3)
            queue.commit(item)
        assert queue.counts().total == queue.dead.size() == 0


@pytest.mark.parametrize(
    ("prepare", "commands", "buried"),
    [
        *((reserve_some_exhausted, commands, 1) for commands in range(6)),
        *((reserve_some_misfits, commands, 2) for commands in range(4)),
    ],
)
def test_a_burial_within_a_claim_of_many_that_was_killed_is_done_by_the_next_claim(
    raw: Any, prepare: Prepare, commands: int, buried: int
) -> None:
    with living(raw) as process:
        assert process.dies_after(commands, prepare(process))
        queue = process.another().queue("orders", model=Order if prepare is reserve_some_misfits else None)
        process.clock.advance(LEASE + 1)
        while item := queue.reserve():
            queue.commit(item)
        (dead,) = queue.dead.peek()
        assert dead.id == id_of(buried)
        assert dead.origin is not None
        assert dead.origin.attempts == 1 or prepare is reserve_some_misfits


def test_a_suspect_whose_holder_dies_while_it_is_alone_is_buried(raw: Any) -> None:
    with living(raw) as process:
        reserve_suspects(process)()
        process.clock.advance(LEASE + 1)
        (item,) = process.another().queue("orders").reserve_many(2)
        assert item.id == id_of(2)
        assert process.found_many() == "1 orders.dead ready 0; 2 orders reserved 2"


def test_an_item_that_a_dead_transaction_settled_is_locked(raw: Any) -> None:
    with living(raw) as process:
        assert process.dies_after(2, transaction(process))
        with pytest.raises(ExecutionTimeout):
            raw.find_one_and_update({"_id": id_of(1)}, {"$set": {"priority": 1}}, maxTimeMS=200)


@pytest.mark.parametrize("commands", range(3))
def test_what_a_batch_in_two_commands_left_is_handed_out_again(raw: Any, commands: int) -> None:
    with living(raw) as process:
        process.dies_after(commands, settle(move_large)(process))
        process.clock.advance(LEASE + 1)
        queue = process.another().queue("orders")
        queue.move_many((item, mongoq.Move("next")) for item in queue.reserve_many(3))
        assert process.another().queue("next").size() == 3
