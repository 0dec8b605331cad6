"""What is stored of idle queues: what expires, and when, and what never does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.integration.aging import HOUR, AgingProcess
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("patient_close")

DAY = timedelta(days=1)
MONTH = timedelta(days=30)
AN_AGE = timedelta(days=400)


class Process:
    """A process with a broker on a clock that the test moves; other processes sweep."""

    def __init__(self, raw: Any, clock: mongoq.VirtualClock, elder: AgingProcess) -> None:
        self.raw, self.clock, self.elder = raw, clock, elder
        self.broker = mongoq.Broker(raw, clock=clock)

    def queue(self, name: str = "orders", **options: Any) -> mongoq.Queue[Any]:
        return self.broker.queue(name, **options)

    def end(self) -> None:
        """End in good order, which writes the counters; the next call is that of another process."""
        self.broker.close()
        self.broker = mongoq.Broker(self.raw, clock=self.clock)

    def run_elder(self, code: str) -> Any:
        """Run code in a process that has been running for an hour, with a ``broker`` and a ``queue``."""
        opening = "broker = open_broker(namespace, now)\nqueue = broker.queue('orders')\ngrow_older(hour)\n"
        return self.elder.run(opening + code, namespace=self.raw.full_name, now=self.clock.now(), hour=HOUR)

    def sweep(self, days: float = 0) -> None:
        """Let the time pass, and then sweep from a process that does nothing else."""
        self.clock.advance(timedelta(days=days, hours=1))
        self.run_elder("broker.close()")

    def stored(self, name: str = "orders", kind: str = "queue") -> dict[str, Any]:
        """Return what is stored of a queue; what the TTL index would have deleted by now is gone."""
        self.raw.delete_many({"expires": {"$lte": self.clock.now()}})
        return dict(self.raw.find_one({"_id": f"{kind}:{name}"}) or {})


@pytest.fixture(scope="module")
def elder(uri: str) -> Iterator[AgingProcess]:
    with AgingProcess(uri) as process:
        yield process


@pytest.fixture
def process(raw: Any, elder: AgingProcess) -> Iterator[Process]:
    # far ahead of the server's own clock, so that its TTL monitor deletes nothing
    instance = Process(raw, mongoq.VirtualClock(datetime.now(UTC) + timedelta(days=3650)), elder)
    yield instance
    instance.broker.close()


def _empty(process: Process, name: str = "orders", **options: Any) -> None:
    queue = process.queue(name, **options)
    queue.push(1)
    queue.pop()
    process.end()


# --- counters --------------------------------------------------------------------------------------


def test_counters_of_a_queue_that_was_emptied_expire(process: Process) -> None:
    _empty(process)
    assert process.stored(kind="stats") == {
        "_id": "stats:orders",
        "put": 1,
        "get": 1,
        "expires": process.clock.now() + MONTH,
    }


def _ready(queue: mongoq.Queue[Any]) -> None:
    queue.push(2)


def _scheduled(queue: mongoq.Queue[Any]) -> None:
    queue.push(2, delay=AN_AGE)


def _reserved(queue: mongoq.Queue[Any]) -> None:
    queue.push(2)
    queue.reserve(lease=AN_AGE)


def _kept(queue: mongoq.Queue[Any]) -> None:
    queue.configure(history=AN_AGE + DAY)
    queue.push(2)
    queue.commit(_held(queue))


def _remembered(queue: mongoq.Queue[Any]) -> None:
    queue.push(2, id=ObjectId(), once=AN_AGE + DAY)
    queue.commit(_held(queue))


def _held(queue: mongoq.Queue[Any]) -> mongoq.Item[Any]:
    item = queue.reserve()
    assert item is not None
    return item


HOLDINGS = [_ready, _scheduled, _reserved, _kept, _remembered]


@pytest.mark.parametrize("hold", HOLDINGS)
@pytest.mark.parametrize("ends", [True, False], ids=["", "its process is killed before it writes anything"])
def test_what_holds_an_item_keeps_its_counters_and_settings_however_long(
    process: Process, hold: Callable[[Any], None], ends: bool
) -> None:
    _empty(process, lease=77)
    process.sweep()
    assert "idle" in process.stored()
    hold(process.queue())
    if ends:
        process.end()
    for _ in range(8):
        process.sweep(days=49)
    document = process.stored()
    assert document["settings"]["lease"] == 77.0
    assert not document.keys() & {"idle", "expires"}
    assert "expires" not in process.stored(kind="stats")


def test_a_queue_that_still_holds_an_item_gets_no_date(process: Process) -> None:
    process.queue().push_many([1, 2])
    process.queue().pop()
    process.end()
    assert process.stored(kind="stats") == {"_id": "stats:orders", "put": 2, "get": 1}


def test_a_push_takes_the_date_away_at_once(process: Process) -> None:
    _empty(process)
    process.queue().push(2)
    process.end()
    assert "expires" not in process.stored(kind="stats")


def test_counters_without_a_date_get_one_when_the_queue_is_found_empty(process: Process) -> None:
    process.raw.insert_one({"_id": "stats:orders", "put": 5})
    process.sweep()
    assert process.stored(kind="stats")["expires"] == process.clock.now() + MONTH
    process.sweep(days=29.9)
    assert process.stored(kind="stats") != {}
    process.sweep(days=1)
    assert process.stored(kind="stats") == {}


def test_a_letter_keeps_the_counters_of_the_dead_queue(process: Process) -> None:
    _empty(process, "orders.dead")
    queue = process.queue()
    queue.push(1)
    queue.bury(_held(queue))
    process.end()
    assert "expires" not in process.stored("orders.dead", kind="stats")


def test_marks_at_the_end_of_priorities_expire_with_the_queue(process: Process) -> None:
    process.raw.insert_many({"_id": f"end:{n}:{queue}", "q": queue} for n in (-1, 5) for queue in ("orders", "others"))
    process.queue("others").push(1)
    process.sweep()
    process.sweep(days=31)
    for priority in (-1, 5):
        assert process.stored(f"{priority}:orders", kind="end") == {}
        assert process.stored(f"{priority}:others", kind="end") == {"_id": f"end:{priority}:others", "q": "others"}


# --- settings --------------------------------------------------------------------------------------


def test_settings_go_when_the_queue_was_empty_and_unused_for_a_season(process: Process) -> None:
    _empty(process, history=5)
    process.clock.advance(10)
    process.stored()
    process.sweep()
    since = process.clock.now()
    assert process.stored()["idle"] == since
    process.sweep(days=99)
    assert "expires" not in process.stored()
    process.sweep(days=1)
    assert process.stored()["expires"] == process.clock.now() + timedelta(hours=1)
    process.sweep()
    assert process.stored() == {}


def test_without_a_sweep_no_settings_expire(process: Process) -> None:
    _empty(process, lease=77)
    process.clock.advance(AN_AGE)
    assert process.stored()["settings"] == {"lease": 77.0}


@pytest.mark.parametrize("idle_before", [True, False])
def test_a_pause_never_ends_by_itself(process: Process, idle_before: bool) -> None:
    _empty(process, lease=77)
    queue = process.queue()
    if idle_before:
        process.sweep(days=1)
        process.sweep(days=101)
        assert "expires" in process.stored()
    queue.pause()
    for _ in range(4):
        process.sweep(days=101)
    assert process.stored() == {"_id": "queue:orders", "settings": {"lease": 77.0}, "paused": True}
    queue.resume()
    process.sweep()
    assert "idle" in process.stored()


USES = {
    "claims": "queue.reserve()",
    "pushes": "queue.push(1); queue.pop()",
    "moves": """
source = broker.queue("source")
source.push(1)
source.move(source.reserve(), "orders")
client[namespace.partition(".")[0]].mongoq.delete_many({"q": "orders"})
""",
    "settings": "queue.configure(max_retries=3)",
    "a pause": "queue.pause(); queue.resume()",
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("days", [98, 101], ids=["before it gets a date", "when it has a date"])
def test_every_use_lets_settings_stay_for_another_season(process: Process, use: str, days: int) -> None:
    _empty(process, lease=77)
    process.sweep()
    process.sweep(days=days)
    assert ("expires" in process.stored()) is (days > 100)
    process.run_elder(f"{USES[use]}\nbroker.close()")
    assert not process.stored().keys() & {"idle", "expires"}
    process.sweep(days=1)
    process.sweep(days=98)
    assert process.stored()["settings"]["lease"] == 77.0


def test_a_consumer_that_only_waits_uses_its_queue(process: Process) -> None:
    _empty(process, lease=77)
    process.sweep()
    assert "idle" in process.stored()
    start = """
consumer = open_broker(namespace, now)
sent.clear()
def wait():
    try:
        consumer.queue("orders").reserve(wait=36_000)
    except mongoq.BrokerClosed:
        pass
thread = threading.Thread(target=wait)
thread.start()
while not sent["findAndModify"]:
    time.sleep(0.005)
"""
    process.elder.run(start, namespace=process.raw.full_name, now=process.clock.now())
    assert "idle" in process.stored()  # a process that begins does not say what others have said lately
    process.elder.run(f"grow_older({HOUR})")
    until(lambda: "idle" not in process.stored())
    process.elder.run("consumer.close(); thread.join()")


def test_queues_that_others_rely_on_keep_their_settings(process: Process) -> None:
    names = ("orders.dead", "graves", "bound", "topic", "consumed", "streamed", "idle")
    for name in names:
        process.queue(name).configure(lease=77)
    process.queue("orders").push(1)
    process.queue("others", dead="graves").push(1)
    process.broker.bind("topic", "bound")
    for _ in range(5):
        now = process.clock.now() + timedelta(days=51)
        record = {
            "host": "h",
            "pid": 1,
            "started": now,
            "seen": now,
            "every": 5.0,
            "queues": [{"queue": "consumed", "held": 0}],
        }
        process.raw.replace_one({"_id": "worker:h:1:x"}, record, upsert=True)
        stream = {"queue": "streamed", "until": now}
        process.raw.replace_one({"_id": "stream:report"}, stream, upsert=True)
        process.sweep(days=51)
    assert [name for name in names if process.stored(name)] == list(names[:-1])


def test_one_process_sweeps_within_the_hour(process: Process) -> None:
    process.sweep()
    _empty(process, lease=77)
    process.run_elder("broker.close()")
    assert "idle" not in process.stored()
    process.sweep()
    assert "idle" in process.stored()


@pytest.mark.parametrize(
    "junk", [{"settings": 7}, {"settings": {"dead": 3}}, {"idle": "x"}, {"paused": "yes"}], ids=str
)
def test_documents_of_another_program_spoil_no_sweep(process: Process, junk: Any) -> None:
    process.raw.insert_one({"_id": "queue:foreign", **junk})
    process.raw.insert_one({"_id": "stats:foreign", "expires": "never"})
    _empty(process, lease=77)
    process.sweep()
    assert "idle" in process.stored()


# --- processes that know what has expired -------------------------------------------------------------


@pytest.mark.parametrize("use", ["push(2)", "reserve()"])
def test_a_process_that_was_given_settings_stores_them_again(process: Process, use: str) -> None:
    forget = "client[namespace.partition('.')[0]].mongoq.delete_one({'_id': 'queue:orders'})"
    given = "queue = broker.queue('orders', history=86_400); queue.push(1)"
    process.run_elder(f"{given}; {forget}; grow_older(hour); queue.{use}; broker.close()")
    assert process.stored()["settings"] == {"history": 86400.0}


def test_the_ttl_index_deletes_what_has_expired() -> None:
    """On a clock that is a year behind, so that every date has passed for the server."""
    with (
        EmbeddedServer(parameters={"ttlMonitorSleepSecs": 1}) as server,
        MongoClient[Any](server.uri, tz_aware=True) as client,
        AgingProcess(server.uri) as elder,
    ):
        raw = client["app"]["mongoq"]
        process = Process(raw, mongoq.VirtualClock(datetime.now(UTC) - AN_AGE), elder)
        _empty(process, lease=77)
        process.queue("paused").pause()
        process.queue("held", lease=5).push(1)
        process.end()
        process.sweep()
        process.sweep(days=101)
        until(lambda: not raw.count_documents({"_id": {"$in": ["queue:orders", "stats:orders"]}}))
        remaining = {document["_id"] for document in raw.find({"_id": {"$regex": "^(queue|stats):"}})}
        assert remaining == {"queue:paused", "queue:held", "stats:held"}
        process.broker.close()


# --- how many commands -------------------------------------------------------------------------------


@pytest.mark.parametrize("looks", ["broker.stats()", "broker.queues()", "broker.close()"])
def test_the_number_of_commands_does_not_grow_with_the_number_of_queues(process: Process, looks: str) -> None:
    counts = []
    for number in (3, 70):
        code = f"for n in range({number}): broker.queue(f'held{{n}}').push(n)\nsent.clear()\n{looks}\nresult = sent"
        process.raw.insert_many({"_id": f"queue:{number}-{n}", "settings": {"lease": 5.0}} for n in range(number))
        process.clock.advance(HOUR)
        counts.append(process.run_elder(code))
        process.elder.run("broker.close()")
    assert counts[0] == counts[1]
    assert 0 < sum(counts[0].values()) < 20
