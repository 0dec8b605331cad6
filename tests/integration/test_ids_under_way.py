"""Given ids while others pop: each is one item, however often it is pushed, and whatever happens between commands."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import ObjectId
from bson.raw_bson import RawBSONDocument

import mongoq
from tests.integration.commands import listened_to

IDS = 100
POPPERS = 2

Producer = Callable[[mongoq.Broker, list[ObjectId]], None]


def one_by_one(broker: mongoq.Broker, ids: list[ObjectId]) -> None:
    for id in ids:
        for _ in range(2):
            broker.queue("orders").push(str(id), id=id)


def in_batches(broker: mongoq.Broker, ids: list[ObjectId]) -> None:
    for start in range(0, len(ids), 10):
        for _ in range(3):
            some = ids[start : start + 10]
            broker.queue("orders").push_many([str(id) for id in some], ids=some)


def with_keys(broker: mongoq.Broker, ids: list[ObjectId]) -> None:
    for id in ids:
        for _ in range(2):
            broker.queue("orders").push(str(id), id=id, key=str(id), on_duplicate="replace")


def by_replays(broker: mongoq.Broker, ids: list[ObjectId]) -> None:
    for _ in range(5):
        broker.queue("source").replay(to="orders")


PRODUCERS: dict[str, Producer] = {
    "push": one_by_one,
    "push_many": in_batches,
    "keys": with_keys,
    "replay": by_replays,
}


@pytest.fixture
def broker(raw: Any) -> Iterator[mongoq.Broker]:
    with mongoq.Broker(raw) as broker:
        broker.ensure_indexes()
        yield broker


class Poppers:
    """Threads that pop, each with a broker of its own, as other processes would, until nothing comes any more."""

    def __init__(self, raw: Any) -> None:
        self.popped: Counter[Any] = Counter()
        self.failures: list[Exception] = []
        self._raw = raw
        self._ends = threading.Event()
        self._counting = threading.Lock()
        self._threads = [threading.Thread(target=self._pop) for _ in range(POPPERS)]
        for thread in self._threads:
            thread.start()

    def _pop(self) -> None:
        try:
            with mongoq.Broker(self._raw) as own:
                self._pop_all(own.queue("orders"))
        except Exception as error:
            self.failures.append(error)

    def _pop_all(self, queue: mongoq.Queue[Any]) -> None:
        while True:
            ends = self._ends.is_set()
            item = queue.pop()
            if item is not None:
                with self._counting:
                    self.popped[item.payload] += 1
            elif ends:
                return

    def end(self) -> Counter[Any]:
        self._ends.set()
        for thread in self._threads:
            thread.join()
        assert not self.failures
        return self.popped


@pytest.mark.parametrize("history", [None, 0.001], ids=["no history", "a short history"])
@pytest.mark.parametrize("way", PRODUCERS)
def test_what_is_pushed_again_and_again_is_popped_once(
    broker: mongoq.Broker, raw: Any, way: str, history: float | None
) -> None:
    broker.queue("orders", history=history).resume()
    ids = [ObjectId() for _ in range(IDS)]
    source = broker.queue("source", history=3600)
    if way == "replay":
        source.push_many([str(id) for id in ids], ids=ids)
        while source.pop() is not None:
            pass
    poppers = Poppers(raw)
    with ThreadPoolExecutor(2) as pool, mongoq.Broker(raw) as broker_a, mongoq.Broker(raw) as broker_b:
        for producer in [pool.submit(PRODUCERS[way], own, ids) for own in (broker_a, broker_b)]:
            producer.result()
    assert poppers.end() == dict.fromkeys(map(str, ids), 1)


def once(action: Callable[[], Any]) -> Callable[[str, Any], None]:
    """Return a hook of commands that acts at the first ``findAndModify``."""
    actions = [action]

    def act(name: str, _: Any) -> None:
        if name == "findAndModify" and actions:
            actions.pop()()

    return act


def test_a_replacing_push_that_was_overtaken_replaces_nothing(broker: mongoq.Broker, uri: str, database: str) -> None:
    """Between its look and its write the same push comes and goes, and another item gets the key."""
    queue, id, newer = broker.queue("orders"), ObjectId(), ObjectId()
    queue.push("first", key="k")
    queue.pop()

    def overtake() -> None:
        queue.push("mine", id=id, key="k", on_duplicate="replace")
        assert queue.pop().payload == "mine"  # type: ignore[union-attr]
        queue.push("newer", id=newer, key="k")

    with listened_to(uri, database) as (late, commands):
        commands.before = once(overtake)
        assert late.queue("orders").push("mine", id=id, key="k", on_duplicate="replace") == id
    assert [(item.id, item.payload) for item in queue.peek(9)] == [(newer, "newer")]


def test_an_unreadable_item_that_a_pop_took_leaves_what_was_pushed_meanwhile(
    broker: mongoq.Broker, raw: Any, uri: str, database: str
) -> None:
    """Under its id and its key: the unreadable one gets an id of its own."""
    id = ObjectId()
    envelope = {
        "_id": id,
        "q": "texts",
        "key": "k",
        "payload": "good",
        "when": datetime(2020, 1, 1, tzinfo=UTC),
        "priority": 0,
        "attempts": 0,
        "reserved": False,
    }
    raw.insert_one(RawBSONDocument(bson.encode(envelope).replace(b"good", b"b\xffad")))
    with listened_to(uri, database) as (popping, commands):
        commands.after = once(lambda: raw.insert_one(envelope))
        assert popping.queue("texts").pop().payload == "good"  # type: ignore[union-attr]
        assert popping.queue("texts").pop() is None
    (letter,) = raw.find({"q": "texts.dead"}, {"key": 1})
    assert (letter["_id"] == id, "key" in letter) == (False, False)


def test_a_burial_after_a_pop_leaves_what_was_pushed_meanwhile(
    broker: mongoq.Broker, raw: Any, uri: str, database: str
) -> None:
    """The popped item leaves nothing, since its id is not remembered; then the same id is pushed by hand."""
    id = broker.queue("numbers").push("no number")
    envelope = dict(raw.find_one({"_id": id}))
    with listened_to(uri, database) as (popping, commands):
        commands.after = once(lambda: raw.insert_one({**envelope, "payload": 7}))
        assert popping.queue("numbers", model=int).pop().payload == 7  # type: ignore[union-attr]
        assert popping.queue("numbers", model=int).pop() is None
    (letter,) = broker.queue("numbers.dead").peek(9)
    assert (letter.payload, letter.id == id) == ("no number", False)


@pytest.mark.parametrize("history", [None, 3600])
def test_a_pop_buries_an_item_whose_key_was_pushed_again_meanwhile(
    broker: mongoq.Broker, uri: str, database: str, history: int | None
) -> None:
    numbers = broker.queue("numbers", history=history)
    id = numbers.push("no number", key="k")
    numbers.push(2)
    with listened_to(uri, database) as (popping, commands):
        commands.after = once(lambda: numbers.push(7, key="k"))
        popped = [popping.queue("numbers", model=int).pop() for _ in range(3)]
    assert [item and item.payload for item in popped] == [2, 7, None]
    (letter,) = numbers.dead.peek(9)
    assert (letter.id, letter.payload) == (id, "no number")
