"""A source in processes that are killed at random moments, and on a network that loses messages: each record once.

``MONGOQ_CRASH_SEED`` brings a schedule back.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq
from tests.crash.fork_server import ForkServer
from tests.pipeline.feeding import NAME, feeding
from tests.proxy import Kind, Proxy
from tests.waiting import PATIENCE, until

SEED = int(os.environ.get("MONGOQ_CRASH_SEED", random.randrange(2**32)))
DOCUMENT = f"source:feeding/{NAME}"


@pytest.fixture(autouse=True)
def soon_forgotten(client: MongoClient[Any]) -> Iterator[None]:
    """Let the server drop the transactions of the dead soon: who takes over waits for that."""
    client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=1)
    yield
    client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=60)


@pytest.fixture
def fork_server(tmp_path: Path) -> Iterator[ForkServer]:
    with ForkServer(tmp_path / "log", roles="tests.pipeline.feeding") as fork_server:
        yield fork_server


def numbers(broker: mongoq.Broker) -> list[int]:
    return [item.payload["n"] for item in broker.queue("raw").peek(200_000)]


def fought(
    uri: str, database: str, broker: mongoq.Broker, engine: str, fork_server: ForkServer, *, kills: int, records: int
) -> None:
    """Let two processes wait for each other, kill one or the other, and let the source come to its end."""
    print(f"MONGOQ_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    started = partial(fork_server.start, "work", uri=uri, database=database, engine=engine, records=records)
    processes = [started() for _ in range(2)]
    queue = broker.queue("raw")
    for _ in range(kills):
        before = queue.size()
        until(lambda before=before: queue.size() > before or queue.size() == records)  # type: ignore[misc]
        time.sleep(chance.uniform(0, 0.4))
        place = chance.randrange(2)
        fork_server.kill(processes[place])
        processes[place] = started()
    for pid in processes:
        fork_server.kill(pid)
    feeding(records, pause=0).drain(broker)
    assert numbers(broker) == list(range(records))


def test_kills_lose_and_repeat_nothing(uri: str, database: str, broker: mongoq.Broker, fork_server: ForkServer) -> None:
    fought(uri, database, broker, "threads", fork_server, kills=2, records=5_000)


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["threads", pytest.param("asyncio", marks=pytest.mark.long)])
def test_sixty_kills_lose_and_repeat_nothing(
    uri: str, database: str, broker: mongoq.Broker, engine: str, fork_server: ForkServer
) -> None:
    fought(uri, database, broker, engine, fork_server, kills=60, records=200_000)


def test_of_two_processes_one_runs_the_source_and_the_other_takes_over(
    uri: str, database: str, broker: mongoq.Broker, raw: Any, fork_server: ForkServer
) -> None:
    processes = [
        fork_server.start("work", uri=uri, database=database, engine="threads", records=100_000) for _ in range(2)
    ]
    until(lambda: broker.queue("raw").size() >= 200)
    holder = until(lambda: raw.find_one({"_id": DOCUMENT}).get("by"))
    [place] = [place for place, pid in enumerate(processes) if f":{pid}:" in holder]
    survivor = processes[1 - place]
    fork_server.kill(processes[place])
    until(lambda: f":{survivor}:" in (raw.find_one({"_id": DOCUMENT}).get("by") or ""))
    fork_server.signal(survivor, signal.SIGTERM)
    assert fork_server.wait(survivor, PATIENCE) == 0, "SIGTERM ends it in good order"
    assert "token" not in raw.find_one({"_id": DOCUMENT})
    in_queue = numbers(broker)
    assert in_queue == list(range(len(in_queue)))


def test_records_stay_in_order_when_the_next_process_knows_the_time_less_well(
    uri: str, database: str, broker: mongoq.Broker
) -> None:
    def delay(reply: dict[str, Any]) -> dict[str, Any]:
        if "localTime" in reply:  # how long it has taken is how wrong the time may be
            time.sleep(0.2)
        return reply

    with Proxy(uri, change=delay) as proxy, mongoq.connect(proxy.uri, database=database) as other:
        other.queue("else").push(1)  # from now on it knows the time
        feeding(100, pause=0).drain(broker)
        feeding(200, pause=0).drain(other)
    assert numbers(broker) == list(range(200))


@pytest.mark.parametrize("kind", ["request", "reply"])
def test_losses_on_the_network_lose_and_repeat_nothing(
    proxied: tuple[Proxy, mongoq.Broker], broker: mongoq.Broker, kind: Kind
) -> None:
    (proxy, own), ordered = proxied, threading.Event()
    own.ensure_indexes()
    with feeding(400, halfway=ordered).start(own) as run:
        until(lambda: broker.queue("raw").size())
        for command in ("commitTransaction", "insert", "update", "find", "findAndModify"):
            proxy.lose(kind, command, times=1)
        ordered.set()
        assert run.wait(PATIENCE), "a run of nothing but sources ends with them"
    assert numbers(broker) == list(range(400))
    assert proxy.lost > 0
