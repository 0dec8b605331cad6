"""Writes a dump: a collection with every kind of document that mongoq stores, and with unfinished work.

``python -m tests.stored.write`` starts a private server and writes ``tests/stored/<today>.jsonl``; an argument replaces
the date in the name. The tests in this folder load every dump and continue with it.

Never change or delete a dump: it stands for the collections of users. When the stored form gains a field, a kind of
document or a type:

1. Extend a chapter below, so that it writes the new form: by public calls, or else by a function in ``inside``.
2. Write a new dump, and commit it beside the old ones. Only the latest one is compared with what the code writes.
3. Add a test that continues with the new form. If earlier dumps do not hold it, name the dumps that do:
   ``@pytest.mark.parametrize("dump", [...], indirect=True)`` with their paths.

If the code can no longer continue with an old dump, it needs a new ``SCHEMA_VERSION`` and a migration first.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest.mock import patch
from uuid import UUID

from bson import Decimal128, Int64, ObjectId
from pymongo import MongoClient

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.stored import inside
from tests.stored.dump import HERE, Dump, dumped
from tests.stored.story import LONG, TIMEOUT, WORDS, Order, Size, busy, intake, mailing, meeting, shop, trips
from tests.waiting import until

__all__ = ["LIFT", "REPORT", "VALUES", "written"]

START = datetime(2100, 1, 1, tzinfo=UTC)
"""The virtual time at the begin: far ahead, so that the TTL monitor of the server deletes no document."""
DAY = timedelta(days=1)
VALUES = {
    "any": [1, 2.5, None, b"bytes", START, ObjectId(f"{8:024x}"), UUID(int=9), Int64(2**40), Decimal128("1.50"), True]
}
"""A payload."""
LIFT = Order(id=UUID(int=10), price=Decimal("12.50"), due=date(2100, 1, 2), size=Size.LARGE, labels={"heavy"})
"""A payload of a queue with a model."""

REPORT: dict[str, Any] = {
    "queue": "due",
    "cron": "0 6 * * *",
    "timezone": "Europe/Berlin",
    "missed": "all",
    "horizon": 3 * DAY,
    "payload": {"what": "report"},
    "headers": {"by": "Ada"},
    "priority": 3,
    "jitter": 60,
}
"""The definition of a schedule."""


class World:
    """The process of the writer: a broker on a virtual clock, and the collection behind it."""

    def __init__(self, collection: Any) -> None:
        self.raw = collection
        self.clock = mongoq.VirtualClock(START)
        self.broker = mongoq.Broker(collection, clock=self.clock)
        self.queue = self.broker.queue

    def advance(self, by: timedelta) -> None:
        """Advance the clock, and delete what expires, as the TTL monitor would by that clock."""
        self.clock.advance(by)
        self.raw.delete_many({"expires": {"$lte": self.clock.now()}})

    def count(self, queue: str, **filter: Any) -> int:
        return int(self.raw.count_documents({"q": queue, **filter}))

    def work(self, pipeline: mongoq.Pipeline, is_done: Callable[[], Any]) -> None:
        """Run a pipeline until a condition holds; unlike a drain this may leave items that wait for a retry."""
        with pipeline.start(self.broker, signals=False) as run:
            until(lambda: is_done() or run.ended)
        assert is_done()


def written(collection: Any) -> Dump:
    """Fill an empty collection, and dump it while a worker, a source and a stream still run."""
    world = World(collection)
    with inside.without_hints(), world.broker, ExitStack() as at_work:
        for chapter in CHAPTERS:
            chapter(world)
            world.advance(timedelta(seconds=10))
        streams(world, at_work)
        at_work.enter_context(sources(world))
        at_work.enter_context(held_by_a_worker(world))
        inside.halt(world.broker, ObjectId())
        inside.task_beats(world.broker, ObjectId())
        inside.flush(world.broker)
        assert inside.sweep(world.broker)
        return dumped(collection, mongoq=mongoq.__version__, now=world.clock.now())


# --- queues ----------------------------------------------------------------------------------


def forgotten(world: World) -> None:
    """A queue that is idle for more than 100 days, so that its settings, counters and mark get a date to expire."""
    world.queue("forgotten").configure(lease=20)
    world.queue("forgotten").push(1)
    world.queue("forgotten").pop()
    inside.flush(world.broker)
    assert inside.sweep(world.broker)
    world.advance(101 * DAY)
    inside.mark_end(world.queue("forgotten"))


def orders(world: World) -> None:
    """A queue with items in every state."""
    queue = world.queue("orders", history=LONG, lease=60)
    queue.push("committed", headers={"by": "Ada"})
    queue.push({"what": "patched", "n": 1})
    queue.push("pushed", key="order-1")
    queue.push("popped")
    queue.commit(queue.reserve())
    queue.commit(queue.reserve(), patch={"$inc": {"n": 41}})
    queue.commit(queue.reserve(), payload="the result")
    queue.pop()
    queue.push("moved", headers={"by": "Bob"})
    queue.move(queue.reserve(), "parcels", payload="moved on", priority=-7, key="parcel-1")
    world.queue("parcels").push("waits in line")
    world.queue("typed", model=Order).push(LIFT)
    queue.push("its lease is over", priority=-8)
    queue.reserve(lease=1)
    queue.push("held", priority=-100)
    queue.reserve(lease=LONG)
    queue.push("released", priority=-9)
    queue.release(queue.reserve())
    queue.push("plain")
    queue.push("first of all", priority=-10, headers={"by": "Cleo", "n": 1})
    queue.push(VALUES)
    queue.push("last of all", priority=100)
    queue.push("later", delay=30 * DAY)
    world.advance(timedelta(seconds=2))


def codes(world: World) -> None:
    """Items that must be started in time: one whose time is over, one that has time, one that was put off."""
    queue = world.queue("codes", on_expired="dead")
    queue.push("put off", expires=DAY)
    queue.release(queue.reserve(), delay=2)
    queue.push("too late", expires=1)
    queue.push("in time", expires=1000 * DAY)


def calls(world: World) -> None:
    """Items of a key that has no start left: one that was put off."""
    world.queue("calls").configure(rate="1/h", burst=1)
    world.queue("calls").push_many([{"customer": 7}] * 2, expires=1000 * DAY)
    pipeline = mongoq.Pipeline("calling")
    pipeline.sink("calls", rate_key="customer")(lambda payload: None)
    world.work(pipeline, lambda: world.count("calls", throttled={"$exists": True}) == world.count("calls") == 1)


def tickets(world: World) -> None:
    """Sequences: one whose first item is held, one that goes on behind a dead letter, and one that is done."""
    queue = world.queue("tickets", history=LONG, max_in_sequence=1)
    queue.push_many(["done 1", "a 1", "a 2", "a 3", "b 1", "b 2"], sequences=["done", "a", "a", "a", "b", "b"])
    queue.commit(queue.reserve())
    queue.reserve(lease=DAY)
    queue.bury(queue.reserve(), reason="no such seat")
    queue.push("a 4", sequence="a", delay=30 * DAY)
    queue.push("of no sequence")
    inside.repair(queue)


def payments(world: World) -> None:
    """A sequence that a dead letter holds, with an item behind it."""
    queue = world.queue("payments", on_dead="hold")
    queue.push_many(["charge", "invoice"], sequence="order-7")
    queue.bury(queue.reserve(), reason="the bank says no")


def retries(world: World) -> None:
    """Items that have failed: one whose next run may begin, its last, and one that waits for it."""
    queue = world.queue("retries", max_retries=1)
    queue.push("failed with an error")
    queue.rollback(queue.reserve(), error=raised("no answer"))
    queue.push("failed with a text", priority=-1)
    queue.rollback(queue.reserve(), error="no reply", delay=DAY)


def raised(text: str) -> Exception:
    """Return an error that has been raised, so that it has a traceback."""
    try:
        raise ConnectionError(text)
    except ConnectionError as error:
        return error


def batches(world: World) -> None:
    """Items of one batch whose leases are over: any of them may have killed the holder."""
    queue = world.queue("batches", max_retries=0)
    queue.push_many(["suspect 1", "suspect 2"])
    queue.reserve_many(2, lease=1)
    world.advance(timedelta(seconds=2))
    queue.push_many(["not yet had 1", "not yet had 2"])


def dead_letters(world: World) -> None:
    """Letters of several queues, in their own dead queues and in one that they share."""
    queue = world.queue("invoices", max_retries=0)
    queue.push("buried", key="invoice-1", headers={"by": "Ada"})
    queue.bury(queue.reserve(), reason="no such customer")
    queue.push("beyond its retries")
    queue.rollback(queue.reserve(), error=raised("no paper"))
    queue.push("its worker died")
    queue.reserve(lease=1)
    world.advance(timedelta(seconds=2))
    assert queue.reserve() is None
    for name in ("notes", "memos"):
        sharing = world.queue(name, dead="graveyard")
        sharing.push(f"of {name}")
        sharing.bury(sharing.reserve())


def ids(world: World) -> None:
    """Items pushed under ids that are remembered: live ones, stubs, kept ones, one that moved."""
    queue = world.queue("charges")
    for n, what in enumerate(("committed", "popped", "moved", "ready"), start=1):
        queue.push(what, id=ObjectId(f"{n:024x}"), once=LONG)
        if what == "committed":
            queue.commit(queue.reserve())
        elif what == "popped":
            queue.pop()
        elif what == "moved":
            queue.move(queue.reserve(), "charged")
    remembering = world.queue("kept", history=DAY)
    remembering.push("kept", id=ObjectId(f"{5:024x}"), once=LONG)
    remembering.commit(remembering.reserve())


def keys(world: World) -> None:
    """Keys that are taken by a ready, a scheduled and a reserved item, and one that is free again."""
    queue = world.queue("reports", history=LONG)
    queue.push("done", key="free")
    queue.commit(queue.reserve())
    queue.push("held", key="held")
    queue.reserve(lease=LONG)
    queue.push("ready", key="ready")
    queue.push("debounced", key="scheduled", delay=DAY)
    queue.push("debounced again", key="scheduled", delay=DAY, on_duplicate="replace")


def topics(world: World) -> None:
    """Two topics, and the copies of what was pushed to them."""
    world.broker.bind("news", "mail", "archive")
    world.broker.bind("alerts", "pager")
    world.queue("news").push("published", headers={"by": "Ada"})
    world.advance(timedelta(seconds=1))
    world.queue("news").push("published under an id", id=ObjectId(f"{6:024x}"), once=LONG)
    world.queue("alerts").push("fire")


def schedules(world: World) -> None:
    """Schedules of each kind: one that has ticked, one that is paused, one that is over, and one with a function."""
    world.broker.schedule("report", **REPORT)
    world.broker.schedule("clean", queue="due", every=DAY, start=START, payload=None, version=2)
    world.broker.schedule("party", queue="due", at=world.clock.now() + timedelta(hours=1), payload="hats")
    world.broker.schedule("made", queue="due", every=7 * DAY, make=lambda tick: tick.name)
    world.advance(DAY + timedelta(hours=1))
    assert world.broker.tick() >= 2
    world.broker.pause_schedule("clean")


def settings(world: World) -> None:
    """Queues with each setting, a queue that is paused, and one that is idle."""
    world.queue("set").configure(lease=90.5, history=LONG, max_retries=7, dead="set.letters")
    world.queue("set").push("by its settings")
    world.queue("unset").configure(history=None, max_retries=None)
    world.queue("final").configure(dead=None)
    world.queue("paused").push("it waits")
    world.queue("paused").pause()
    world.queue("resumed").pause()
    world.queue("resumed").resume()
    world.queue("resumed").push("it does not wait")
    world.queue("resting").configure(lease=20)


def replays(world: World) -> None:
    """A history of which the first two items were copied to another queue, and one to its own."""
    queue = world.queue("done", history=LONG)
    for n in range(4):
        queue.push({"n": n}, headers={"by": "Ada"}, key=f"done-{n}", priority=n)
        queue.commit(queue.reserve())
        world.advance(timedelta(seconds=1))
    assert queue.replay(to="again", limit=2, once=LONG).pushed == 2
    assert queue.replay(where={"n": 3}, label="once more", once=LONG).pushed == 1


# --- pipelines -------------------------------------------------------------------------------


def pipelines(world: World) -> None:
    """A fork, one of whose items is done while others wait for another run; a stage with letters; one at most once."""
    world.queue("lines").configure(history=LONG)
    world.queue("raw").push({"order": 1, "skus": ["bolt", "nut"], "photo": "x" * 70_000}, headers={"by": "Ada"})
    world.queue("raw").push({"order": 2})

    def pack(line: dict[str, Any], job: mongoq.Job) -> None:
        if line["sku"] != "bolt":
            raise ConnectionError(f"cannot do {job.delivery_hash}")

    def packed() -> bool:
        failed = world.count("lines", error={"$exists": True})
        return world.count("lines", processed={"$exists": True}) == failed == world.count("shop.errors") == 1

    world.work(shop(pack), packed)

    def send(letter: str) -> str:
        if letter == "lost":
            raise ConnectionError("no such address")
        return letter.upper()

    world.queue("letters").push_many(["dear", "lost"])
    mailing(send).drain(world.broker, signals=False)


def joins(world: World) -> None:
    """Items that wait for a partner, one that was given up, and a pair whose run failed."""

    def settle(ask: dict[str, Any], bid: dict[str, Any], job: mongoq.Job) -> dict[str, Any]:
        if ask["lot"] == 3:
            raise ConnectionError(f"cannot do {job.delivery_hash}")
        return {"lot": ask["lot"], "price": bid["price"]}

    asks, bids = world.queue("asks"), world.queue("bids")
    asks.push({"lot": 2, "who": "given up"})
    meeting(settle).drain(world.broker, signals=False)
    world.advance(TIMEOUT + DAY)
    meeting(settle).drain(world.broker, signals=False)
    asks.push({"lot": 1, "who": "waits"}, key="ask-1", headers={"by": "Ada"}, priority=3)
    asks.push_many([{"lot": 4, "who": "joined"}, {"lot": 4, "who": "next in line"}])
    meeting(settle).drain(world.broker, signals=False)
    bids.push({"lot": 4, "price": 40})
    asks.push({"lot": 3, "who": "runs again"}, headers={"by": "Bob"})
    meeting(settle).drain(world.broker, signals=False)
    bids.push({"lot": 3, "price": 30}, headers={"of": "Cleo"})
    world.work(meeting(settle), lambda: world.count("meeting.settle.joined", error={"$exists": True}))
    world.queue("flights").push({"trip": 7, "to": "Lyon"})
    world.queue("cars").push({"for": 7, "model": "Beetle"})
    trips().drain(world.broker, signals=False)


@contextmanager
def sources(world: World) -> Iterator[None]:
    """A source that stopped midway; and another one at work."""

    def rows(position: dict[str, int] | None) -> Iterator[mongoq.Record]:
        for n in range(3):
            yield mongoq.Record(WORDS[n], position={"row": n + 1}, priority=n, headers={"row": n + 1})
        raise ConnectionError("the file is gone")

    with suppress(mongoq.StageStopped):
        intake(rows=rows).drain(world.broker, signals=False)
    enough = threading.Event()

    def ticks(position: int | None) -> Iterator[mongoq.Record]:
        yield mongoq.Record(1, position=1)
        yield mongoq.Record(2, position=2)
        enough.wait()

    with intake(ticks=ticks).start(world.broker, signals=False):
        try:
            until(lambda: world.count("ticks") == 2)
            yield
        finally:
            enough.set()


# --- what runs while the dump is made ----------------------------------------------------------


@contextmanager
def held_by_a_worker(world: World) -> Iterator[None]:
    """A worker that runs an item under limits, and its record."""
    world.queue("jobs").configure(max_running=5, rate="100/s", burst=50)
    world.queue("jobs").push("under way")
    enough = threading.Event()

    def work(job: str) -> None:
        enough.wait()

    # the record written at the start holds no item yet; the next heartbeat does
    with busy(work).start(world.broker, signals=False, heartbeat=0.2):
        try:
            until(lambda: world.count("jobs", reserved=True))
            record = {"_id": {"$regex": "^worker:"}, "queues": {"queue": "jobs", "held": 1}}
            until(lambda: world.raw.count_documents(record))
            until(lambda: world.raw.count_documents({"_id": "lease:housekeeping"}))
            yield
        finally:
            enough.set()


def streams(world: World, at_work: ExitStack) -> None:
    """Queries of Spark: at rest, stopped with an unsettled batch, killed while it claimed, and at work."""
    world.queue("events", history=LONG, lease=120).push_many([f"event {n}" for n in range(8)])

    def reader(consumer: str) -> inside.Reader:
        instance = inside.Reader(world.raw, world.clock)
        at_work.callback(instance.broker.close)
        instance.begin(consumer)
        return instance

    resting = reader("at rest")
    resting.claim(1)
    resting.settle(1)
    resting.give_back()
    stopped = reader("stopped")
    stopped.claim(1)
    stopped.settle(1)
    world.queue("events").push("remembered", id=ObjectId(f"{7:024x}"), once=2 * LONG, priority=-1)
    stopped.claim(2, after=1)
    stopped.note("what was made of it")
    stopped.give_back()
    killed = reader("killed")
    killed.die_in_claim(world.raw, 2)
    working = reader("at work")
    working.claim(1)


CHAPTERS = (
    forgotten,
    joins,
    schedules,
    orders,
    codes,
    calls,
    tickets,
    payments,
    retries,
    batches,
    dead_letters,
    ids,
    keys,
    topics,
    settings,
    pipelines,
    replays,
)
"""Chapters that leave nothing running, in their order; the first two let months pass, the third a day."""


def main(name: str) -> None:
    logging.getLogger("mongoq").setLevel(logging.CRITICAL)  # the failures in the chapters are intended
    named = patch("socket.gethostname", return_value="host")
    with EmbeddedServer() as server, MongoClient[Any](server.uri, tz_aware=True) as client, named:
        dump = written(client["stored"]["mongoq"])
    path = HERE / f"{name}.jsonl"
    dump.write(path)
    print(f"{path}: {len(dump.documents)} documents, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else f"{datetime.now(UTC):%Y-%m-%d}")
