"""The first table of crashes in ``docs/envelope.md``, row by row: operations on one item."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pydantic import BaseModel

import mongoq
from tests.docs.crashing import DAY, ID, LEASE, Live, Operation, Prepare, Process, Row, check, deaths


class Order(BaseModel):
    number: int


def _pushed(process: Process, payload: Any = 1, *, remembered: bool = False, **options: Any) -> mongoq.Queue[Any]:
    queue = process.queue(**options)
    process.queue().push(payload, id=ID, once=7 * DAY if remembered else 0.001)
    process.clock.advance(1)
    queue.resume()  # stores the settings of the handle
    return queue


def _push(**options: Any) -> Prepare:
    return lambda process: partial(process.queue().push, 1, id=ID, **options)


def _push_of_a_key(on_duplicate: Any) -> Prepare:
    def prepare(process: Process) -> Operation:
        queue = process.queue()
        queue.push("old", key="k", id=ID, once=0.001)
        queue.reserve()
        return lambda: queue.push("new", key="k", on_duplicate=on_duplicate)

    return prepare


def _pop(payload: Any = 1, **options: Any) -> Prepare:
    return lambda process: _pushed(process, payload, **options).pop


def _reserve(payload: Any = 1, *, runs: int = 0, pop: bool = False, **options: Any) -> Prepare:
    def prepare(process: Process) -> Operation:
        queue = _pushed(process, payload, **options)
        for _ in range(runs):
            queue.reserve()
            process.clock.advance(LEASE + 1)
        return queue.pop if pop else queue.reserve

    return prepare


def _settle(operation: Callable[[Any, Any], Any], **options: Any) -> Prepare:
    def prepare(process: Process) -> Operation:
        queue = _pushed(process, **options)
        item = queue.reserve()
        return lambda: operation(queue, item)

    return prepare


def _move_to_a_taken_key(process: Process) -> Operation:
    process.queue("next").push(2, key="k")
    queue = _pushed(process)
    item = queue.reserve()
    assert item is not None

    def move() -> None:
        with pytest.raises(mongoq.DuplicateItem):
            queue.move(item, "next", key="k")

    return move


def _remove(process: Process) -> Operation:
    queue = _pushed(process)
    return lambda: queue.remove(ID)


def _keyed(process: Process) -> str:
    """Tell of the only item, whatever its id."""
    documents = list(process.raw.find({"key": "k"}))
    return "; ".join(f"{document['payload']}: {process.describe(document)}" for document in documents) or "nothing"


def _pop_of_bytes(process: Process) -> Operation:
    """Another program has written text that is not UTF-8."""
    queue = _pushed(process, "text")
    envelope = process.raw.find_one_and_delete({"_id": ID})
    process.raw.insert_one(RawBSONDocument(bson.encode(envelope).replace(b"text", b"\xff\xfe\xfd\xfc")))
    return queue.pop


def _by_the_envelope(process: Process) -> str:
    document = process.raw.find_one({"_id": ID}, {"payload": 0})
    return "nothing" if document is None else process.describe({**document, "payload": None})


def _pop_after_a_push_with_an_id(process: Process) -> Operation:
    queue = process.queue()
    queue.push("without")
    process.clock.advance(1)
    queue.push("with", id=ID)
    return queue.pop


def _unnamed(process: Process) -> str:
    """Tell of the item without a given id, which leaves no stub."""
    documents = list(process.raw.find({"q": "orders", "_id": {"$ne": ID}}))
    return next(("reserved" if document["reserved"] else "ready" for document in documents), "gone")


def _after_the_lease(process: Process) -> str:
    process.clock.advance(LEASE + 1)
    return process.found()


READY, RESERVED, DEAD = "orders ready 0", "orders reserved 1", "orders.dead ready 0"

ROWS = [
    Row("`push`", _push(), ["nothing", READY]),
    Row(
        "`push` with a key",
        lambda process: partial(process.queue().push, 1, key="k"),
        ["nothing", "1: orders ready 0"],
        look=_keyed,
    ),
    Row("`push` with a key and an id", _push(key="k"), ["nothing", READY]),
    Row(
        "`push` with a key that a reserved item has",
        _push_of_a_key("keep"),
        ["old: orders reserved 1"],
        look=_keyed,
    ),
    Row(
        '`push` with a key that a reserved item has, and `"replace"`',
        _push_of_a_key("replace"),
        ["old: orders reserved 1", "new: orders ready 0"],
        look=_keyed,
    ),
    Row("`pop`", _pop(), [READY, "nothing"]),
    Row("`pop` with history", _pop(history=DAY), [READY, "orders processed 1"]),
    Row("`pop` of a remembered id", _pop(remembered=True), [READY, RESERVED, "a stub"]),
    Row(
        "`pop` with history of an id remembered for longer",
        _pop(remembered=True, history=DAY),
        [READY, RESERVED, "orders processed 1"],
    ),
    Row(
        "`pop` of an item pushed without an id, after a push with one",
        _pop_after_a_push_with_an_id,
        ["ready", "reserved", "gone"],
        look=_unnamed,
    ),
    Row("`pop` of a payload that does not fit", _pop("bad", model=Order), [READY, "nothing", READY, RESERVED, DEAD]),
    Row(
        "`pop` with history of a payload that does not fit",
        _pop("bad", model=Order, history=DAY),
        [READY, "orders processed 1", READY, RESERVED, DEAD],
    ),
    Row(
        "`pop` of what cannot be decoded",
        _pop_of_bytes,
        [READY, "nothing", READY, RESERVED, DEAD],
        look=_by_the_envelope,
    ),
    Row(
        "`pop` that finds retries exhausted",
        _reserve(runs=1, pop=True, max_retries=0),
        ["orders expired 1", "orders reserved 2", DEAD],
    ),
    Row("`reserve`", _reserve(), [READY, RESERVED]),
    Row(
        "`reserve` that finds retries exhausted",
        _reserve(runs=1, max_retries=0),
        ["orders expired 1", "orders reserved 2", DEAD],
    ),
    Row("`reserve` of a payload that does not fit", _reserve("bad", model=Order), [READY, RESERVED, DEAD]),
    Row("`commit`", _settle(lambda queue, item: queue.commit(item)), [RESERVED, "nothing"]),
    Row(
        "`commit` with history",
        _settle(lambda queue, item: queue.commit(item), history=DAY),
        [RESERVED, "orders processed 1"],
    ),
    Row(
        "`commit` of a remembered id",
        _settle(lambda queue, item: queue.commit(item), remembered=True),
        [RESERVED, "a stub"],
    ),
    Row("`rollback`", _settle(lambda queue, item: queue.rollback(item)), [RESERVED, "orders ready 1"]),
    Row(
        "`rollback` beyond the retries",
        _settle(lambda queue, item: queue.rollback(item), max_retries=0),
        [RESERVED, DEAD],
    ),
    Row("`release`", _settle(lambda queue, item: queue.release(item)), [RESERVED, READY]),
    Row(
        "`extend`",
        _settle(lambda queue, item: queue.extend(item, lease=DAY)),
        ["orders expired 1", RESERVED],
        look=_after_the_lease,
    ),
    Row("`move`", _settle(lambda queue, item: queue.move(item, "next")), [RESERVED, "next ready 0"]),
    Row(
        "`move` with a key", _settle(lambda queue, item: queue.move(item, "next", key="k")), [RESERVED, "next ready 0"]
    ),
    Row("`move` with a key that is taken", _move_to_a_taken_key, [RESERVED]),
    Row("`bury`", _settle(lambda queue, item: queue.bury(item)), [RESERVED, DEAD]),
    Row("`remove`", _remove, [READY, "nothing"]),
]


def test_what_a_crash_leaves_is_what_the_page_says(live: Live) -> None:
    check(live, "one item", ROWS)


def test_a_burial_that_was_killed_is_done_by_the_next_claim(live: Live) -> None:
    with live() as process:
        queue = _pushed(process, max_retries=2)
        for _ in range(3):
            assert queue.reserve() is not None
            process.clock.advance(LEASE + 1)
        assert process.dies_after(1, queue.reserve)
        assert queue.reserve() is None
        process.clock.advance(LEASE + 1)
        assert queue.reserve() is None
        (dead,) = queue.dead.peek()
    assert dead.origin is not None
    assert dead.origin.attempts == 3


@pytest.mark.parametrize("history", [None, 0.001, DAY])
def test_a_pop_that_was_killed_never_forgets_an_id(live: Live, history: Any) -> None:
    """The process that pops has not seen the push, and does not expect a remembered id."""

    def prepare(process: Process) -> Operation:
        queue = process.queue(history=history)
        queue.resume()
        process.another().queue("orders").push(1, id=ID)
        process.clock.advance(1)
        return queue.pop

    alive = []
    for process, _ in deaths(live, prepare):
        document = process.document()
        alive.append("when" in document)
        assert alive[-1] or document["expires"] >= document["once"]
        process.another().queue("orders").push(1, id=ID)  # the same push again must change nothing
        assert process.document() == document
    assert alive == sorted(alive, reverse=True)
    assert {alive[0], alive[-1]} == {True, False}


def test_a_push_with_a_key_and_an_id_that_was_killed_is_sent_again_and_adds_one(live: Live) -> None:
    for process, push in deaths(live, _push(key="k")):
        process.end_transactions()
        assert push() == ID
        assert process.raw.count_documents({"q": "orders"}) == 1
