"""The rows of the second table of crashes in ``docs/envelope.md``: operations on many items.

What is found is written by the numbers of the items in the order of claims, with what is settled last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel

import mongoq
from tests.docs.crashing import DAY, LEASE, Operation, Prepare, Process, id_of
from tests.docs.crashing import Row as AnyRow

LARGE = b"0" * (9 * 1024 * 1024)
"""Two of them do not fit one command."""
PAGE_OF_THE_DEAD = 500
PAGE_OF_A_PURGE = 1_000

Row = partial(AnyRow, look=Process.found_many)
Items = list[mongoq.Item[Any]]


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
    Row("`push_many`", _push_many([1, 2, 3]), [GONE, READY]),
    Row("`push_many` in two commands", _push_many([LARGE, LARGE]), [GONE, "1 orders ready 0", "1-2 orders ready 0"]),
    Row("`reserve_many`", _reserve_many, [READY, READY, RESERVED, RESERVED]),
    Row(
        "`reserve_many` that finds retries exhausted",
        reserve_some_exhausted,
        [
            *["1 orders expired 1; 2-3 orders ready 0"] * 2,
            *["1 orders expired 1; 2-3 orders reserved 1"] * 3,
            "1 orders reserved 2; 2-3 orders reserved 1",
            "1 orders.dead ready 0; 2-3 orders reserved 1",
        ],
    ),
    Row(
        "`reserve_many` that finds suspects",
        _reserve_some_suspects,
        [
            *["1-2 orders expired 1; 3-4 orders ready 0"] * 2,
            *["1-2 orders expired 1; 4 orders ready 0; 3 orders reserved 1"] * 3,
            *["4 orders ready 0; 1-2 orders expired 1; 3 orders reserved 1"] * 2,
        ],
    ),
    Row(
        "`reserve_many` that finds nothing but suspects",
        reserve_suspects,
        [*["1-2 orders expired 1"] * 5, "2 orders expired 1; 1 orders reserved 2"],
    ),
    Row(
        "`reserve_many` of payloads that do not fit",
        reserve_some_misfits,
        [READY, READY, RESERVED, RESERVED, "2 orders.dead ready 0; 1, 3 orders reserved 1"],
    ),
    Row("`commit_many`", settle(lambda queue, items: queue.commit_many(items)), [RESERVED, GONE]),
    Row(
        "`commit_many` of several reservations",
        settle(lambda queue, items: queue.commit_many(items), tokens=3),
        [RESERVED, GONE],
    ),
    Row(
        "`commit_many` with history",
        settle(lambda queue, items: queue.commit_many(items), history=DAY),
        [RESERVED, KEPT],
    ),
    Row(
        "`commit_many` of ids, some of them remembered",
        _commit_some_remembered,
        [RESERVED, "2-3 orders reserved 1; 1 a stub", "1 a stub"],
    ),
    Row(
        "`commit_many` of leases about to end",
        settle(lambda queue, items: queue.commit_many(items), late=True),
        [RESERVED, "2-3 orders reserved 1", "3 orders reserved 1", GONE],
    ),
    Row(
        "`rollback_many`",
        settle(lambda queue, items: queue.rollback_many(items)),
        [RESERVED, "1-3 orders ready 1"],
    ),
    Row(
        "`rollback_many`, some beyond the retries",
        _rollback_some_beyond,
        ["1 orders reserved 2; 2-3 orders reserved 1", "1 orders.dead ready 0; 2-3 orders ready 1"],
    ),
    Row("`release_many`", settle(lambda queue, items: queue.release_many(items)), [RESERVED, READY]),
    Row(
        "`extend_many`",
        settle(lambda queue, items: queue.extend_many(items, lease=DAY)),
        ["1-3 orders expired 1", RESERVED],
        look=_after_the_lease,
    ),
    Row("`move_many`", settle(_move), [RESERVED, "1-3 next ready 0"]),
    Row(
        "`move_many` in two commands",
        settle(move_large),
        [RESERVED, "1 next ready 0; 2-3 orders reserved 1", "1-3 next ready 0"],
    ),
    Row("`purge`", _purge, [READY, READY, GONE, GONE]),
    Row(
        "`purge` with a limit of two pages",
        _purge_in_pages,
        [*["1-1002 orders ready 0"] * 3, *["1001-1002 orders ready 0"] * 2, *["1002 orders ready 0"] * 2],
    ),
    Row("`replay`", replay, [KEPT, KEPT, KEPT, HALF_COPIED, COPIED]),
    Row("`replay` of chosen ids", _replay_by_ids, [KEPT, KEPT, KEPT, HALF_COPIED, HALF_COPIED, COPIED]),
    Row("`dead.replay`", _dead(3), [*["1-3 orders.dead ready 0"] * 2, READY]),
    Row(
        "`dead.replay` of two pages",
        _dead(PAGE_OF_THE_DEAD + 1),
        [
            *["1-501 orders.dead ready 0"] * 2,
            *["1-500 orders ready 0; 501 orders.dead ready 0"] * 2,
            "1-501 orders ready 0",
        ],
    ),
    Row(
        "`commit` and `push` in a transaction",
        transaction,
        [*["1 orders reserved 1"] * 3, "2 next ready 0"],
    ),
    AnyRow(
        "`push` to a topic of one queue",
        topic(lambda orders: orders.push(1, id=id_of(1)), "billing"),
        [GONE, "billing 1"],
        look=Process.found_copies,
    ),
    AnyRow(
        "`push` to a topic of several queues",
        topic(lambda orders: orders.push(1, id=id_of(1)), "billing", "shipping"),
        [GONE, GONE, "billing 1, shipping 1"],
        look=Process.found_copies,
    ),
    AnyRow(
        "`push` with a key to a topic of several queues",
        topic(lambda orders: orders.push(1, key="k"), "billing", "shipping"),
        [GONE, GONE, GONE, "billing 1, shipping 1"],
        look=Process.found_copies,
    ),
    AnyRow(
        "`push_many` to a topic",
        topic(lambda orders: orders.push_many([1, 2, 3], ids=_ids(1, 3)), "billing", "shipping"),
        [GONE, GONE, "billing 3, shipping 3"],
        look=Process.found_copies,
    ),
]
