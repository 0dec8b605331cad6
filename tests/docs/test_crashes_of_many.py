"""The second table of crashes in ``docs/envelope.md``, row by row: operations on many items, and what comes after.

What is found is written by the numbers of the items in the order of claims, with what is settled last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel
from pymongo.errors import ExecutionTimeout

import mongoq
from tests.docs.crashing import DAY, LEASE, Live, Operation, Prepare, Process, Row, check, deaths, id_of

LARGE = b"0" * (9 * 1024 * 1024)
"""Two of them do not fit one command."""
PAGE_OF_THE_DEAD = 500
PAGE_OF_A_PURGE = 1_000

Items = list[mongoq.Item[Any]]


def of_many(
    name: str, prepare: Prepare, expected: list[str], look: Callable[[Process], str] = Process.found_many
) -> Row:
    """Return a row that tells of many items."""
    return Row(name, prepare, expected, look)


class Order(BaseModel):
    number: int


def _ids(first: int, last: int) -> list[Any]:
    return [id_of(number) for number in range(first, last + 1)]


def _push(process: Process, first: int, last: int, *, remembered: bool = False) -> None:
    numbers = range(first, last + 1)
    process.queue().push_many(numbers, ids=_ids(first, last), once=7 * DAY if remembered else 0.001)
    process.clock.advance(1)


def pushed(process: Process, last: int = 3, **options: Any) -> mongoq.Queue[Any]:
    queue = process.queue(**options)
    queue.resume()  # stores the settings of the handle
    _push(process, 1, last)
    return queue


def _push_many(payloads: Sequence[Any]) -> Prepare:
    return lambda process: partial(process.queue().push_many, payloads, ids=_ids(1, len(payloads)))


def _reserve_many(process: Process) -> Operation:
    return partial(pushed(process).reserve_many, 3)


def reserve_some_exhausted(process: Process) -> Operation:
    queue = pushed(process, 1, max_retries=0)
    queue.reserve()
    process.clock.advance(LEASE + 1)
    _push(process, 2, 3)
    return partial(queue.reserve_many, 3)


def _suspects(process: Process) -> mongoq.Queue[Any]:
    queue = pushed(process, 2, max_retries=0)
    queue.reserve_many(2)
    process.clock.advance(LEASE + 1)
    return queue


def _reserve_some_suspects(process: Process) -> Operation:
    queue = _suspects(process)
    _push(process, 3, 4)
    return partial(queue.reserve_many, 3)


def reserve_suspects(process: Process) -> Operation:
    return partial(_suspects(process).reserve_many, 2)


def reserve_some_misfits(process: Process) -> Operation:
    queue = process.queue(model=Order)
    process.queue().push_many([{"number": 1}, "bad", {"number": 3}], ids=_ids(1, 3))
    process.clock.advance(1)
    return partial(queue.reserve_many, 3)


def settle(
    operation: Callable[[mongoq.Queue[Any], Items], Any], *, tokens: int = 1, late: bool = False, **options: Any
) -> Prepare:
    def prepare(process: Process) -> Operation:
        queue = pushed(process, **options)
        items = [item for _ in range(tokens) for item in queue.reserve_many(3 // tokens)]
        process.clock.advance(LEASE - 0.5 if late else 1)
        return lambda: operation(queue, items)

    return prepare


def _commit_some_remembered(process: Process) -> Operation:
    queue = process.queue()
    _push(process, 1, 1, remembered=True)
    _push(process, 2, 3)
    items = queue.reserve_many(3)
    return lambda: queue.commit_many(items)


def _rollback_some_beyond(process: Process) -> Operation:
    queue = pushed(process, 1, max_retries=1)
    queue.rollback_many(queue.reserve_many(1))
    _push(process, 2, 3)
    items = queue.reserve_many(3)
    return lambda: queue.rollback_many(items)


def _move(queue: mongoq.Queue[Any], items: Items) -> None:
    queue.move_many((item, mongoq.Move("next")) for item in items)


def move_large(queue: mongoq.Queue[Any], items: Items) -> None:
    """Move the first by itself: unequal moves do not share a statement, nor these two a command."""
    first, *rest = items
    ways = [
        (first, mongoq.Move("next", payload=LARGE)),
        *((item, mongoq.Move("next", payload=LARGE + b"1")) for item in rest),
    ]
    queue.move_many(ways)


def _history(process: Process) -> mongoq.Queue[Any]:
    queue = pushed(process, history=DAY)
    while queue.pop():
        process.clock.advance(1)
    return queue


def replay(process: Process) -> Operation:
    return partial(_history(process).replay, page=2)


def _replay_by_ids(process: Process) -> Operation:
    return partial(_history(process).replay, page=2, ids=_ids(1, 3))


def _dead(number: int) -> Prepare:
    def prepare(process: Process) -> Operation:
        queue = pushed(process, number, max_retries=0)
        queue.rollback_many(queue.reserve_many(number))
        return queue.dead.replay

    return prepare


def _purge(process: Process) -> Operation:
    return pushed(process).purge


def _purge_in_pages(process: Process) -> Operation:
    return partial(pushed(process, PAGE_OF_A_PURGE + 2).purge, limit=PAGE_OF_A_PURGE + 1)


def transaction(process: Process) -> Operation:
    queue, following = pushed(process, 1), process.queue("next")
    following.resume()  # reads its settings
    item = queue.reserve()
    assert item is not None

    def settle_and_push() -> None:
        with process.broker.transaction() as tx:
            queue.commit(item, session=tx.session)
            following.push(2, id=id_of(2), once=0.001, session=tx.session)

    return settle_and_push


def topic(operation: Callable[[mongoq.Queue[Any]], Any], *queues: str) -> Prepare:
    def prepare(process: Process) -> Operation:
        process.broker.bind("orders", *queues)
        return lambda: operation(process.queue())

    return prepare


def _after_the_lease(process: Process) -> str:
    process.clock.advance(LEASE)
    return process.found_many()


READY, RESERVED, GONE = "1-3 orders ready 0", "1-3 orders reserved 1", "nothing"
KEPT = "1-3 orders processed 1"
HALF_COPIED = f"copies of 1-2 orders ready 0; {KEPT}"
COPIED = f"copies of 1-3 orders ready 0; {KEPT}"

ROWS = [
    of_many("`push_many`", _push_many([1, 2, 3]), [GONE, READY]),
    of_many(
        "`push_many` in two commands", _push_many([LARGE, LARGE]), [GONE, "1 orders ready 0", "1-2 orders ready 0"]
    ),
    of_many("`reserve_many`", _reserve_many, [READY, RESERVED]),
    of_many(
        "`reserve_many` that finds retries exhausted",
        reserve_some_exhausted,
        [
            "1 orders expired 1; 2-3 orders ready 0",
            "1 orders expired 1; 2-3 orders reserved 1",
            "1 orders reserved 2; 2-3 orders reserved 1",
            "1 orders.dead ready 0; 2-3 orders reserved 1",
        ],
    ),
    of_many(
        "`reserve_many` that finds suspects",
        _reserve_some_suspects,
        [
            "1-2 orders expired 1; 3-4 orders ready 0",
            "1-2 orders expired 1; 4 orders ready 0; 3 orders reserved 1",
            "4 orders ready 0; 1-2 orders expired 1; 3 orders reserved 1",
        ],
    ),
    of_many(
        "`reserve_many` that finds nothing but suspects",
        reserve_suspects,
        ["1-2 orders expired 1", "2 orders expired 1; 1 orders reserved 2"],
    ),
    of_many(
        "`reserve_many` of payloads that do not fit",
        reserve_some_misfits,
        [READY, RESERVED, "2 orders.dead ready 0; 1, 3 orders reserved 1"],
    ),
    of_many("`commit_many`", settle(lambda queue, items: queue.commit_many(items)), [RESERVED, GONE]),
    of_many(
        "`commit_many` of several reservations",
        settle(lambda queue, items: queue.commit_many(items), tokens=3),
        [RESERVED, GONE],
    ),
    of_many(
        "`commit_many` with history",
        settle(lambda queue, items: queue.commit_many(items), history=DAY),
        [RESERVED, KEPT],
    ),
    of_many(
        "`commit_many` of ids, some of them remembered",
        _commit_some_remembered,
        [RESERVED, "2-3 orders reserved 1; 1 a stub", "1 a stub"],
    ),
    of_many(
        "`commit_many` of leases about to end",
        settle(lambda queue, items: queue.commit_many(items), late=True),
        [RESERVED, "2-3 orders reserved 1", "3 orders reserved 1", GONE],
    ),
    of_many(
        "`rollback_many`",
        settle(lambda queue, items: queue.rollback_many(items)),
        [RESERVED, "1-3 orders ready 1"],
    ),
    of_many(
        "`rollback_many`, some beyond the retries",
        _rollback_some_beyond,
        ["1 orders reserved 2; 2-3 orders reserved 1", "1 orders.dead ready 0; 2-3 orders ready 1"],
    ),
    of_many("`release_many`", settle(lambda queue, items: queue.release_many(items)), [RESERVED, READY]),
    of_many(
        "`extend_many`",
        settle(lambda queue, items: queue.extend_many(items, lease=DAY)),
        ["1-3 orders expired 1", RESERVED],
        look=_after_the_lease,
    ),
    of_many("`move_many`", settle(_move), [RESERVED, "1-3 next ready 0"]),
    of_many(
        "`move_many` in two commands",
        settle(move_large),
        [RESERVED, "1 next ready 0; 2-3 orders reserved 1", "1-3 next ready 0"],
    ),
    of_many("`purge`", _purge, [READY, GONE]),
    of_many(
        "`purge` with a limit of two pages",
        _purge_in_pages,
        ["1-1002 orders ready 0", "1001-1002 orders ready 0", "1002 orders ready 0"],
    ),
    of_many("`replay`", replay, [KEPT, HALF_COPIED, COPIED]),
    of_many("`replay` of chosen ids", _replay_by_ids, [KEPT, HALF_COPIED, COPIED]),
    of_many("`dead.replay`", _dead(3), ["1-3 orders.dead ready 0", READY]),
    of_many(
        "`dead.replay` of two pages",
        _dead(PAGE_OF_THE_DEAD + 1),
        [
            "1-501 orders.dead ready 0",
            "1-500 orders ready 0; 501 orders.dead ready 0",
            "1-501 orders ready 0",
        ],
    ),
    of_many(
        "`commit` and `push` in a transaction",
        transaction,
        ["1 orders reserved 1", "2 next ready 0"],
    ),
    Row(
        "`push` to a topic of one queue",
        topic(lambda orders: orders.push(1, id=id_of(1)), "billing"),
        [GONE, "billing 1"],
        look=Process.found_copies,
    ),
    Row(
        "`push` to a topic of several queues",
        topic(lambda orders: orders.push(1, id=id_of(1)), "billing", "shipping"),
        [GONE, "billing 1, shipping 1"],
        look=Process.found_copies,
    ),
    Row(
        "`push` with a key to a topic of several queues",
        topic(lambda orders: orders.push(1, key="k"), "billing", "shipping"),
        [GONE, "billing 1, shipping 1"],
        look=Process.found_copies,
    ),
    Row(
        "`push_many` to a topic",
        topic(lambda orders: orders.push_many([1, 2, 3], ids=_ids(1, 3)), "billing", "shipping"),
        [GONE, "billing 3, shipping 3"],
        look=Process.found_copies,
    ),
]


def test_what_a_crash_leaves_is_what_the_page_says(live: Live) -> None:
    check(live, "many items", ROWS)


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


def test_what_was_killed_is_completed_by_the_same_call(live: Live) -> None:
    rows = [row for row in ROWS if row.name in AGAIN]
    assert len(rows) == len(AGAIN)
    for row in rows:
        for process, operation in deaths(live, row.prepare):
            process.end_transactions()
            operation()
            assert row.look(process) == row.expected[-1], row.name


def test_a_replay_that_was_killed_does_not_copy_again_what_was_done_meanwhile(live: Live) -> None:
    left = []
    for process, again in deaths(live, replay):
        queue = process.another().queue("orders")
        queue.commit_many(queue.reserve_many(10))
        left.append(again().pushed)
    assert (left[0], left[-1]) == (3, 0)
    assert 1 in left


def test_what_a_killed_claim_of_many_took_gets_one_more_run_each_and_alone(live: Live) -> None:
    with live() as process:
        queue = pushed(process, max_retries=0)
        queue.reserve_many(3)
        for _ in range(3):
            process.clock.advance(LEASE + 1)
            (item,) = queue.reserve_many(3)
            queue.commit(item)
        assert queue.counts().total == queue.dead.size() == 0


@pytest.mark.parametrize(("prepare", "buried"), [(reserve_some_exhausted, 1), (reserve_some_misfits, 2)])
def test_a_burial_within_a_claim_of_many_that_was_killed_is_done_by_the_next_claim(
    live: Live, prepare: Prepare, buried: int
) -> None:
    for process, _ in deaths(live, prepare):
        queue = process.another().queue("orders", model=Order if prepare is reserve_some_misfits else None)
        process.clock.advance(LEASE + 1)
        while item := queue.reserve():
            queue.commit(item)
        (dead,) = queue.dead.peek()
        assert dead.id == id_of(buried)
        assert dead.origin is not None
        assert dead.origin.attempts == 1 or prepare is reserve_some_misfits


def test_a_suspect_whose_holder_dies_while_it_is_alone_is_buried(live: Live) -> None:
    with live() as process:
        reserve_suspects(process)()
        process.clock.advance(LEASE + 1)
        (item,) = process.another().queue("orders").reserve_many(2)
        assert item.id == id_of(2)
        assert process.found_many() == "1 orders.dead ready 0; 2 orders reserved 2"


def test_an_item_that_a_dead_transaction_settled_is_locked(live: Live) -> None:
    with live() as process:
        assert process.dies_after(2, transaction(process))
        with pytest.raises(ExecutionTimeout):
            process.raw.find_one_and_update({"_id": id_of(1)}, {"$set": {"priority": 1}}, maxTimeMS=200)


def test_what_a_batch_in_two_commands_left_is_handed_out_again(live: Live) -> None:
    for process, _ in deaths(live, settle(move_large)):
        process.clock.advance(LEASE + 1)
        queue = process.another().queue("orders")
        queue.move_many((item, mongoq.Move("next")) for item in queue.reserve_many(3))
        assert process.another().queue("next").size() == 3
