"""Sequences under concurrency, lost replies and transactions, and what their commands cost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import DatetimeMS, ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.integration.commands import Commands, Killed, explain, listened_to
from tests.proxy import Proxy
from tests.waiting import PATIENCE, until


def check(raw: Any, queue: str = "orders", most: int = 1) -> None:
    """Check that each sequence has as many heads as it may, before its blocked items."""
    items = list(raw.find({"q": queue, "place": {"$exists": True}}))
    controls = {document["sequence"]: document["open"] for document in raw.find({"_id": {"$regex": "^sequence:"}})}
    assert controls.keys() == {item["sequence"] for item in items}
    for sequence, opened in controls.items():
        own = sorted((item for item in items if item["sequence"] == sequence), key=lambda item: item["place"])
        assert opened == min(most, len(own))
        assert ["when" in item for item in own] == [place < opened for place in range(len(own))]


# --- many at once --------------------------------------------------------------------------------


class Observer:
    """Notes which items are handed out, and how many of a sequence run at a time."""

    def __init__(self, expected: int) -> None:
        self._lock = threading.Lock()
        self._expected = expected
        self._running: Counter[str] = Counter()
        self.most = 0
        self.handed_out: dict[str, list[Any]] = {}
        self.done = threading.Event()

    def begin(self, item: mongoq.Item[Any]) -> None:
        with self._lock:
            self._running[str(item.sequence)] += 1
            self.most = max(self.most, *self._running.values())
            self.handed_out.setdefault(str(item.sequence), []).append(tuple(item.payload))

    def end(self, item: mongoq.Item[Any]) -> None:
        """Note the end of a run, before its item is settled."""
        with self._lock:
            self._running[str(item.sequence)] -= 1
            if sum(map(len, self.handed_out.values())) == self._expected:
                self.done.set()


@pytest.mark.parametrize("most", [1, 3])
def test_producers_and_consumers_never_overlap_or_overtake(uri: str, raw: Any, database: str, most: int) -> None:
    producers, consumers, number, names = 4, 4, 16, ["a", "b"]
    observer = Observer(producers * number)
    mongoq.Broker(raw).queue("orders").configure(max_in_sequence=most)

    def produce(which: int) -> None:
        with mongoq.connect(uri, database=database) as broker:
            for position in range(number):
                broker.queue("orders").push((which, position), sequence=names[position % 2])

    def consume() -> None:
        with mongoq.connect(uri, database=database) as broker:
            queue = broker.queue("orders", lease=60)
            while not observer.done.is_set():
                if (item := queue.reserve()) is not None:
                    observer.begin(item)
                    observer.end(item)
                    queue.commit(item)

    with ThreadPoolExecutor(producers + consumers) as pool:
        threads = [pool.submit(produce, which) for which in range(producers)]
        threads += [pool.submit(consume) for _ in range(consumers)]
        for thread in threads:
            thread.result()
    assert observer.most <= most
    for handed_out in observer.handed_out.values():
        assert len(set(handed_out)) == producers * number // 2
        if most == 1:
            for which in range(producers):
                own = [position for producer, position in handed_out if producer == which]
                assert own == sorted(own)
    assert raw.count_documents({"q": "orders"}) == 0
    assert raw.count_documents({"_id": {"$regex": "^sequence:"}}) == 0


def test_letters_are_replayed_and_removed_at_the_same_moment(uri: str, raw: Any, database: str) -> None:
    """Two processes decide about the same letters, while a third one pushes behind them, and a fourth one repairs."""
    names = [f"s{number}" for number in range(4)]
    orders = mongoq.Broker(raw).queue("orders", on_dead="hold", max_in_sequence=2)
    orders.push_many([(name, number) for number in range(4) for name in names], sequences=names * 4)
    for item in orders.reserve_many(8):
        orders.bury(item)
    assert orders.reserve() is None
    letters = [letter.id for letter in orders.dead.peek(8)]

    def replay() -> int:
        with mongoq.connect(uri, database=database) as broker:
            return sum(broker.queue("orders").dead.replay(ids=[id]).pushed for id in letters)

    def remove() -> int:
        with mongoq.connect(uri, database=database) as broker:
            return sum(broker.queue("orders").dead.remove(id) for id in reversed(letters))

    def push() -> int:
        with mongoq.connect(uri, database=database) as broker:
            for name in names * 2:
                broker.queue("orders").push((name, 4), sequence=name)
        return 8

    def repair() -> int:
        with mongoq.connect(uri, database=database) as broker:
            for _ in range(5):
                broker.queue("orders").repair_sequences()
        return 0

    with ThreadPoolExecutor(4) as pool:
        replayed, removed, pushed, _ = [each.result() for each in map(pool.submit, (replay, remove, push, repair))]
    assert replayed + removed == 8
    check(raw, most=2)
    seen: dict[str, list[int]] = {}
    while items := orders.reserve_many(100):
        assert max(Counter(item.sequence for item in items).values()) <= 2
        for name, number in (item.payload for item in items):
            seen.setdefault(name, []).append(number)
        orders.commit_many(items)
    assert sum(map(len, seen.values())) == 8 + replayed + pushed
    assert all(numbers[len(numbers) - 4 :] == [2, 3, 4, 4] for numbers in seen.values())
    assert raw.count_documents({"_id": {"$regex": "^sequence:"}}) == 0


def test_the_last_item_leaves_while_others_are_pushed(uri: str, raw: Any, database: str) -> None:
    """The write skew: a push that saw an item in front, and a commit that saw none behind."""
    rounds = 30

    def push_all() -> None:
        with mongoq.connect(uri, database=database) as broker:
            for number in range(rounds):
                broker.queue("orders").push(number, sequence="a")

    def settle_all() -> list[int]:
        seen: list[int] = []
        with mongoq.connect(uri, database=database) as broker:
            queue = broker.queue("orders")
            while len(seen) < rounds:
                item = queue.reserve(wait=PATIENCE)
                assert item is not None, f"the sequence is stuck after {seen}"
                seen.append(item.payload)
                queue.commit(item)
        return seen

    with ThreadPoolExecutor(2) as pool:
        pushing, settling = pool.submit(push_all), pool.submit(settle_all)
        pushing.result()
        assert settling.result() == list(range(rounds))
    check(raw)


@pytest.mark.parametrize("how", ["remove", "purge", "filtered", "limited"])
def test_a_process_that_has_not_heard_of_sequences_deletes_in_order(
    uri: str, raw: Any, database: str, broker: mongoq.Broker, how: str
) -> None:
    with mongoq.connect(uri, database=database) as late:
        queue = late.queue("orders")
        queue.push(0)  # it reads now that the queue has no sequences
        broker.queue("orders").push_many([1, 2, 3], sequence="a")
        broker.queue("orders").push(4)
        first = raw.find_one({"q": "orders", "place": 0})
        until(lambda: queue.size("ready") == 3)  # its clock may be a little behind
        match how:
            case "remove":
                assert queue.remove(first["_id"])
            case "purge":
                assert queue.purge(state="ready") == 3
            case "filtered":
                assert queue.purge(state="ready", where={"$eq": 1}) == 1
            case _:
                assert queue.purge(state="ready", limit=2) == 2
    check(raw)
    following = broker.queue("orders").reserve_many(9)
    assert [item.payload for item in following if item.sequence] == [2]


def test_purges_beside_producers_and_consumers_leave_no_sequence_without_a_head(
    uri: str, raw: Any, database: str
) -> None:
    over = threading.Event()

    def consume() -> None:
        with mongoq.connect(uri, database=database) as broker:
            while not over.is_set():
                broker.queue("orders").commit_many(broker.queue("orders").reserve_many(5))

    def purge() -> None:
        with mongoq.connect(uri, database=database) as broker:
            while not over.is_set():
                broker.queue("orders").purge()
                broker.queue("orders").purge(state="blocked", limit=3)

    with ThreadPoolExecutor(3) as pool, mongoq.connect(uri, database=database) as broker:
        others = [pool.submit(consume), pool.submit(consume), pool.submit(purge)]
        for number in range(8):
            broker.queue("orders").push_many([number] * 20, sequences=[f"s{place % 4}" for place in range(20)])
        over.set()
        for other in others:
            other.result()
    check(raw)


# --- names, histories and letters ----------------------------------------------------------------


def test_copies_of_history_wait_for_nothing_and_block_nothing(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders", history=3600)
    queue.push_many([1, 2], sequence="a")
    for _ in range(2):
        assert queue.pop() is not None
    queue.push_many([3, 4], sequence="a")
    assert queue.replay().pushed == 2
    check(raw)
    items = queue.reserve_many(9)
    assert sorted((item.sequence is not None, item.payload) for item in items) == [(False, 1), (False, 2), (True, 3)]


def test_a_collection_without_the_index_of_sequences_gets_it(broker: mongoq.Broker, raw: Any) -> None:
    broker.queue("orders").push(0)
    raw.drop_index("mongoq1_sequence")  # as an older version has left it
    broker.queue("orders").push_many([1, 2, 3], sequence="a")
    broker.queue("orders").pop()
    check(raw)
    with mongoq.Broker(raw) as newer:
        newer.queue("orders").push(4, sequence="a")
    assert "mongoq1_sequence" in raw.index_information()
    check(raw)


# --- lost replies --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "command"),
    [
        ("request", "find"),
        ("reply", "update"),
        ("reply", "insert"),
        ("request", "insert"),
        ("reply", "commitTransaction"),
    ],
)
def test_a_push_with_a_lost_message_takes_one_place(
    lossy: tuple[Proxy, Any], raw: Any, what: Any, command: str
) -> None:
    proxy, collection = lossy
    queue = mongoq.Broker(collection).queue("orders")
    queue.push(1, sequence="a")
    queue.push(2, sequence="a")
    proxy.lose(what, command)
    if command == "insert":
        queue.push_many([3, 4], sequence="a")
    else:
        queue.push(3, sequence="a")
        queue.push(4, sequence="a")
    assert proxy.lost == 1
    check(raw)
    assert [queue.pop().payload for _ in range(4)] == [1, 2, 3, 4]  # type: ignore[union-attr]
    check(raw)


@pytest.mark.parametrize(
    ("what", "items", "command"),
    [
        ("reply", 1, "delete"),
        ("request", 1, "findAndModify"),
        ("reply", 1, "commitTransaction"),
        ("reply", 2, "delete"),
        ("request", 2, "update"),
        ("reply", 2, "commitTransaction"),
    ],
)
def test_a_commit_with_a_lost_message_lets_one_item_follow(
    lossy: tuple[Proxy, Any], raw: Any, what: Any, items: int, command: str
) -> None:
    proxy, collection = lossy
    queue = mongoq.Broker(collection).queue("orders")
    names = ["a", "b"][:items]
    for name in names:
        queue.push_many([1, 2, 3], sequence=name)
    held = queue.reserve_many(items)
    proxy.lose(what, command)
    queue.commit_many(held) if items > 1 else queue.commit(held[0])
    assert proxy.lost == 1
    check(raw)
    following = queue.reserve_many(9)
    assert [item.payload for item in following] == [2] * items


# --- killed between two commands, or overtaken ---------------------------------------------------


def check_holds(raw: Any) -> None:
    """Check that the letters which hold sequences are there, and that control documents count them and the heads."""
    for document in raw.find({"_id": {"$regex": "^sequence:"}}):
        held = [entry["id"] for entry in document.get("held", [])]
        assert raw.count_documents({"_id": {"$in": held}, "when": {"$exists": True}}) == len(held)
        heads = {"q": document["queue"], "sequence": document["sequence"], "when": {"$exists": True}}
        assert document["open"] == len(held) + raw.count_documents(heads)


class Intruder:
    """Pushes two items before one command of another process, unless that would wait for what it has written."""

    def __init__(self, queue: mongoq.Queue[Any], number: int) -> None:
        self._queue = queue
        self.left = number
        self._is_locked = False

    def __call__(self, name: str, body: Any) -> None:
        self._is_locked = self._is_locked and "autocommit" in body and "startTransaction" not in body
        if not self._is_locked:
            self.left -= 1
            if not self.left:
                self._queue.push(1, sequence="a")
                self._queue.push(2, sequence="a")
        self._is_locked |= "autocommit" in body and name in ("delete", "update", "insert")


@pytest.mark.parametrize("force", [False, True])
def test_pushes_beside_a_drop_leave_whole_sequences(
    uri: str, raw: Any, database: str, broker: mongoq.Broker, force: bool
) -> None:
    """Before each command of the drop in turn, another process pushes."""
    step, is_over = 0, False
    while not is_over:
        step += 1
        queue = broker.queue(f"orders{step}")
        if force:
            queue.push_many([0, 0], sequence="a")
        with listened_to(uri, database) as (dropping, commands):
            dropping.queues()
            commands.before = intruder = Intruder(queue, step)
            try:
                dropping.drop_queue(queue.name, force=force)
            except mongoq.QueueNotEmpty:
                assert not force
            commands.before = None
        is_over = intruder.left > 0
        check(raw, queue.name)
        queue.push_many([3, 4], sequence="a")
        check(raw, queue.name)
        assert drain(queue) in ([0, 0, 1, 2, 3, 4], [1, 2, 3, 4], [2, 3, 4], [3, 4])
        check(raw, queue.name)


def drain(queue: mongoq.Queue[Any]) -> list[Any]:
    payloads: list[Any] = []
    while (item := queue.pop()) is not None:
        payloads.append(item.payload)
    return payloads


def pop_into_history(queue: mongoq.Queue[Any]) -> None:
    queue.configure(history=60)
    queue.pop()


TAKEN: dict[str, Callable[[mongoq.Broker], Any]] = {
    "remove": lambda broker: broker.queue("orders").dead.remove(broker.queue("orders").dead.peek()[0].id),
    "purge": lambda broker: broker.queue("orders").dead.purge(),
    "purge some": lambda broker: broker.queue("orders").dead.purge(limit=1),
    "purge by reason": lambda broker: broker.queue("orders").dead.purge(reason="x"),
    "pop": lambda broker: broker.queue("orders").dead.pop(),
    "pop into history": lambda broker: pop_into_history(broker.queue("orders").dead),
    "replay elsewhere": lambda broker: broker.queue("orders").dead.replay(to="elsewhere"),
    "drop the dead queue": lambda broker: broker.drop_queue("orders.dead", force=True),
    "drop the queue": lambda broker: broker.drop_queue("orders", force=True),
    "pop a first item": lambda broker: broker.queue("free").pop(),
    "pop a first item into history": lambda broker: pop_into_history(broker.queue("free")),
}


@pytest.mark.parametrize("how", TAKEN)
def test_a_process_that_is_killed_while_it_takes_items_away_blocks_no_sequence(
    uri: str, raw: Any, database: str, broker: mongoq.Broker, how: str
) -> None:
    """It is killed before each of its commands in turn; nobody repairs what it has left."""
    queue, free = broker.queue("orders", on_dead="hold"), broker.queue("free")
    step, is_killed = 0, True
    while is_killed:
        step, is_killed = step + 1, False
        with listened_to(uri, database) as (dying, commands):
            for name in ("orders", "orders.dead", "free"):
                dying.queue(name).pop()  # it reads the settings, and hears of no sequence
            queue.push_many([1, 2], sequence="a")
            free.push_many([3, 4], sequence="a")
            held = queue.reserve()
            assert held is not None
            queue.bury(held, reason="x")
            until(dying.queue("orders.dead").peek)  # its clock may be behind
            with commands.killed_before(raw.database.client, step):
                try:
                    TAKEN[how](dying)
                except Killed:
                    is_killed = True
        check_holds(raw)
        # A pop of such an item reserves it first: it comes back when the lease ends.
        raw.update_many({"reserved": True}, {"$set": {"when": datetime(2026, 1, 1, tzinfo=UTC)}})
        queue.dead.purge()
        assert drain(queue) in ([[2], []] if how == "drop the queue" else [[2]])
        assert drain(free) in ([3, 4], [4])
        assert raw.count_documents({"q": {"$in": ["orders", "free"]}, "when": {"$exists": True}}) == 0
        assert raw.count_documents({"_id": {"$regex": "^sequence:"}, "queue": {"$ne": "elsewhere"}}) == 0
        for name in ("orders", "orders.dead", "free"):
            broker.drop_queue(name)


# --- transactions of the caller ------------------------------------------------------------------


def test_a_callers_transaction_that_is_aborted_leaves_the_sequence_as_it_was(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders")
    queue.push_many([1, 2], sequence="a")
    item = queue.reserve()
    assert item is not None
    with pytest.raises(KeyError), broker.transaction() as tx:
        queue.commit(item, session=tx.session)
        queue.push(3, sequence="a", session=tx.session)
        queue.push(4, sequence="b", session=tx.session)
        raise KeyError
    check(raw)
    assert queue.reserve() is None
    with broker.transaction() as tx:
        queue.commit(item, session=tx.session)
        queue.push(3, sequence="a", session=tx.session)
        queue.push_many([4, 5], sequence="b", session=tx.session)
    check(raw)
    popped: list[int] = []
    while (one := queue.pop()) is not None:
        popped.append(one.payload)
    assert sorted(popped) == [2, 3, 4, 5]
    assert popped.index(2) < popped.index(3)
    assert popped.index(4) < popped.index(5)
    check(raw)


def test_a_standalone_server_has_no_sequences() -> None:
    with EmbeddedServer(replica_set=None) as server, MongoClient[Any](server.uri) as client:
        queue = mongoq.Broker(client["one"]["mongoq"]).queue("orders")
        with pytest.raises(mongoq.TransactionsUnavailable, match=r"sequences \(sequence=\).*standalone"):
            queue.push(1, sequence="a")
        with pytest.raises(mongoq.TransactionsUnavailable, match="sequences"):
            queue.push_many([1], sequence="a")
        assert client["one"].list_collection_names() == []
        queue.push(1)
        item = queue.reserve()
        assert item is not None
        with pytest.raises(mongoq.TransactionsUnavailable, match="sequences"):
            queue.move(item, "next", sequence="a")
        queue.commit(item)


# --- wakeups -------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [True, False], ids=["this process", "another process"])
def test_a_waiter_gets_the_item_that_follows(uri: str, database: str, own: bool) -> None:
    with listened_to(uri, database) as (broker, commands), mongoq.connect(uri, database=database) as other:
        queue = (broker if own else other).queue("orders")
        queue.push_many([1, 2], sequence="a")
        item = queue.reserve()
        assert item is not None
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(broker.queue("orders").reserve, wait=PATIENCE)  # a look would come minutes later
            until(lambda: "getMore" in commands.names())
            queue.extend(item)
            queue.commit(item)
            following = waiting.result()
        assert following is not None
        assert following.payload == 2


# --- commands ------------------------------------------------------------------------------------


@pytest.fixture
def listened(uri: str, database: str) -> Iterator[tuple[Commands, mongoq.Broker]]:
    with listened_to(uri, database) as (broker, commands):
        broker.queue("orders").push(0)
        broker.queue("orders").pop()
        commands.sent.clear()
        yield commands, broker


UNORDERED: dict[str, Callable[[Any], Any]] = {
    "push": lambda queue: queue.push(1),
    "push_many": lambda queue: queue.push_many([1, 2]),
    "pop": lambda queue: queue.pop(),
    "commit": lambda queue: queue.commit(queue.reserve()),
    "commit_many": lambda queue: queue.commit_many(queue.reserve_many(5)),
    "move": lambda queue: queue.move(queue.reserve(), "next"),
    "bury": lambda queue: queue.bury(queue.reserve()),
    "remove": lambda queue: queue.remove(ObjectId()),
    "purge": lambda queue: queue.purge(),
}


def test_an_item_that_cannot_be_moved_costs_the_others_few_transactions(
    listened: tuple[Commands, mongoq.Broker], raw: Any
) -> None:
    commands, broker = listened
    queue = broker.queue("orders")
    queue.push_many(range(100))
    items = queue.reserve_many(100)
    raw.update_one({"_id": items[70].id}, {"$set": {"hops": "of another program"}})
    commands.sent.clear()
    with pytest.raises(mongoq.BatchIncomplete) as incomplete:
        queue.move_many([(item, mongoq.Move("next", sequence=str(item.payload % 10))) for item in items])
    assert list(incomplete.value.failed) == [items[70].id]
    assert commands.names().count("commitTransaction") < 10  # halves of halves


def test_a_queue_without_sequences_hears_nothing_of_them(listened: tuple[Commands, mongoq.Broker]) -> None:
    commands, broker = listened
    queue = broker.queue("orders")
    queue.push_many(range(20))
    for name, operate in UNORDERED.items():
        commands.sent.clear()
        operate(queue)
        assert commands.sent, name
        for command in commands.sent:
            assert "autocommit" not in command, name
            # What is taken away may have a place: another process may just have pushed the first item with one. And
            # it may be a dead letter that holds the sequence of another queue.
            text = str(command)
            assert "'sequence" not in text
            assert "place" not in text or name in ("pop", "remove", "purge")


def test_items_without_a_sequence_are_settled_without_a_transaction_beside_others(
    listened: tuple[Commands, mongoq.Broker],
) -> None:
    commands, broker = listened
    queue = broker.queue("orders")
    queue.push_many([1, 2], sequence="a")
    queue.push_many(["free", "free"])
    items = queue.reserve_many(9)
    assert len(items) == 3
    commands.sent.clear()
    queue.commit_many(items)
    (free,) = (command for command in commands.sent if "autocommit" not in command and next(iter(command)) == "delete")
    assert len(free["deletes"]) == 1
    assert commands.names().count("commitTransaction") == 1


def test_heads_of_several_sequences_leave_in_one_transaction_after_the_limit_was_lowered(
    listened: tuple[Commands, mongoq.Broker],
) -> None:
    commands, broker = listened
    queue = broker.queue("orders", max_in_sequence=2)
    for name in ("a", "b"):
        queue.push_many([1, 2, 3], sequence=name)
    items = queue.reserve_many(9)
    queue.configure(max_in_sequence=1)
    commands.sent.clear()
    queue.commit_many([item for item in items if item.payload == 1])
    assert commands.names().count("commitTransaction") == 1
    assert queue.counts().blocked == 2


def test_heads_of_several_sequences_leave_in_one_transaction_before_items_without_a_date(
    listened: tuple[Commands, mongoq.Broker], raw: Any
) -> None:
    commands, broker = listened
    queue = broker.queue("orders")
    for name in ("a", "b"):
        _, id, _ = queue.push_many([1, 2, 3], sequence=name)
        raw.update_one({"_id": id}, {"$unset": {"ready_from": ""}})
    items = queue.reserve_many(9)
    commands.sent.clear()
    queue.commit_many(items)
    assert commands.names().count("commitTransaction") == 1
    assert [item.payload for item in queue.reserve_many(9)] == [3, 3]


def test_the_items_that_follow_several_heads_are_found_by_the_index(
    listened: tuple[Commands, mongoq.Broker], raw: Any
) -> None:
    commands, broker = listened
    queue = broker.queue("orders", max_in_sequence=2)
    for name in ("a", "b"):
        queue.push_many(list(range(300)), sequence=name)
    items = queue.reserve_many(10)
    assert len(items) == 4
    commands.sent.clear()
    queue.commit_many([items[0], items[2]])
    (aggregate,) = (command for command in commands.sent if "aggregate" in command)
    kept = {name: aggregate[name] for name in ("aggregate", "pipeline", "cursor")}
    plan = raw.database.command("explain", kept, verbosity="executionStats")
    (stage,) = (stage for stage in plan["stages"] if "$lookup" in stage)
    assert "mongoq1_sequence" in str(plan)
    assert int(stage["totalDocsExamined"]) <= 4


def test_the_item_that_follows_is_found_by_the_index(listened: tuple[Commands, mongoq.Broker], raw: Any) -> None:
    commands, broker = listened
    queue = broker.queue("orders")
    for name in ("a", "b"):
        queue.push_many(list(range(300)), sequence=name)
    queue.push_many(list(range(300)))
    head = next(one for one in queue.reserve_many(400) if one.sequence == "a")
    (follower, *_) = queue.peek(1, state="blocked")
    commands.sent.clear()
    assert len(queue.blocked_by(follower.id)) == 1
    queue.commit(head)
    searches = [command for command in commands.sent if "place" in command.get("sort", {})]
    assert len(searches) == 2, "for the head, and for the item that follows it"
    options = {"find", "filter", "limit", "projection", "findAndModify", "query", "update", "sort", "fields"}
    for search in searches:
        plan = explain(raw, {name: value for name, value in search.items() if name in options})
        assert plan.documents <= 2
        assert plan.keys <= 10


def test_a_reserved_head_with_a_field_of_another_program_keeps_its_lease(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders", max_in_sequence=2)
    *_, third = queue.push_many([1, 2, 3], sequence="a")
    first, second = queue.reserve_many(2)
    raw.update_one({"_id": second.id}, {"$set": {"ready_from": datetime(2026, 1, 1, tzinfo=UTC)}})
    queue.configure(max_in_sequence=1)
    before = raw.find_one({"_id": second.id})
    queue.commit(first)
    assert raw.find_one({"_id": second.id}) == before
    assert "when" not in raw.find_one({"_id": third})


def test_an_unreadable_head_lets_the_next_item_follow(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders")
    (first, *_) = queue.push_many([1, 2, 3], sequence="a")
    raw.update_one({"_id": first}, {"$set": {"attempts": "many"}})
    item = queue.reserve()
    assert item is not None
    assert item.payload == 2
    check(raw)


NO_DATES = [DatetimeMS(2**62), [datetime(2026, 1, 1, tzinfo=UTC)]]
"""Values that a search for dates finds, and that are none that can be used."""


@pytest.mark.parametrize(
    ("options", "value"),
    [
        *(({}, value) for value in [*NO_DATES, "ABC"]),
        *(({"max_in_sequence": 2}, value) for value in [*NO_DATES, "ABC"]),
        ({"on_dead": "hold"}, NO_DATES[0]),
    ],
)
def test_an_item_with_a_date_that_cannot_be_used_is_passed_over(
    broker: mongoq.Broker, raw: Any, options: dict[str, Any], value: Any
) -> None:
    queue, most = broker.queue("orders", **options), options.get("max_in_sequence", 1)
    ids = queue.push_many(range(most + 2), sequence="a")
    write_unreadable(raw, ids[most], {"ready_from": value})
    items = queue.reserve_many(9)
    assert [item.payload for item in items] == list(range(most))
    queue.commit(items[0])
    (last,) = queue.reserve_many(9)
    assert last.payload == most + 1


def test_many_sequences_pass_over_items_with_dates_that_cannot_be_used(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders", max_in_sequence=2)
    for name in ("a", "b"):
        ids = queue.push_many([f"{name}{n}" for n in range(6)], sequence=name)
        for id, value in zip(ids[2:], NO_DATES, strict=False):
            raw.update_one({"_id": id}, {"$set": {"ready_from": value}})
    assert queue.purge(state="ready") == 4
    assert [item.payload for item in queue.reserve_many(9)] == ["a4", "a5", "b4", "b5"]


def test_items_that_follow_many_heads_wait_for_their_own_dates(broker: mongoq.Broker) -> None:
    queue, later = broker.queue("orders"), datetime(2100, 1, 1, tzinfo=UTC)
    for name in ("a", "b"):
        queue.push("first", sequence=name)
        queue.push("last", sequence=name, when=later)
    queue.commit_many(queue.reserve_many(9))
    assert [item.due for item in queue.peek(9, state="scheduled")] == [later] * 2


def test_an_item_with_an_unreadable_date_to_be_claimed_from_follows(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders")
    _, id = queue.push_many(range(2), sequence="a")
    write_unreadable(raw, id, {"when": "ABC"})
    item = queue.reserve()
    assert item is not None
    queue.commit(item)
    assert [item.payload for item in queue.reserve_many(9)] == [1]


def test_an_item_of_the_last_day_follows(broker: mongoq.Broker, raw: Any) -> None:
    queue, latest = broker.queue("orders"), datetime.max.replace(microsecond=999_000, tzinfo=UTC)
    queue.push("first", sequence="a")
    id = queue.push("last", sequence="a", when=datetime.max.replace(tzinfo=UTC))
    item = queue.reserve()
    assert item is not None
    queue.commit(item)
    assert raw.find_one({"_id": id})["when"] == latest


def write_unreadable(raw: Any, id: Any, fields: Any) -> None:
    """Set fields of an item; of their text, ``ABC`` becomes bytes that are not UTF-8."""
    envelope = bson.encode({**raw.find_one({"_id": id}), **fields}).replace(b"ABC", b"\xff\xfe\xfd")
    update = {"q": {"_id": id}, "u": RawBSONDocument(envelope)}
    raw.database.command({"update": raw.name, "updates": [update]})
