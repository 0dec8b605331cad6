"""``python -m bench group-commit``: many callers of single operations, beside Keuss on the same server.

It is also compared with a group commit by hand (the difference is mongoq's own cost) and with the commands alone. It
runs on the event loop of asyncio, and once on uvloop, which uses libuv as Node.js does, where Keuss runs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import uvloop
from pymongo import AsyncMongoClient

from bench import report
from bench.bare import Bare
from bench.benchmark import Benchmark
from bench.group_bare import GroupBare
from bench.group_commands import claims_and_commits_rate, pushes_rate
from bench.group_threads import threads_rate
from bench.keuss import VERSION, Keuss
from bench.operations import PAYLOAD_BYTES, payload
from bench.place import Place, place
from bench.shells import bare_collection
from mongoq import AsyncBroker

__all__ = ["BENCHMARK"]

TARGETS = {("push", 64): 8.0, ("reserve and commit", 64): 6.0, ("push", 256): 12.0, ("reserve and commit", 256): 12.0}
"""How many times as fast as Keuss, by operation and callers."""
AHEAD = 1.5
"""Items pushed before they are reserved, for each that is expected to be."""
WHAT = {"push": "push", "reserve and commit": "reserve"}
LOOPS = {"uvloop": uvloop.new_event_loop}
"""The event loops of the ways that have another than that of asyncio."""
OTHERS = ("bare", "commands", "uvloop", "alone")
THREADS = {"threads": True, "threads_alone": False}
"""The ways of threads, and whether they share commands."""

Step = Callable[[], Awaitable[bool]]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--callers", type=int, action="append", metavar="N", help="may be repeated; 64 and 256")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement; default %(default)s")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each way in turn; default %(default)s")
    parser.add_argument(
        "--keuss", type=Path, metavar="FOLDER", help="where Keuss is, or is installed; default a new one"
    )
    parser.add_argument("--no-keuss", action="store_true", help="leave Keuss out")
    parser.add_argument("--threads", action="store_true", help="measure threads as well, with group commit and without")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with place(options.uri, options.database, "group") as here, tempfile.TemporaryDirectory() as folder:
        keuss = None if options.no_keuss else Keuss(options.keuss or Path(folder))
        measured = [
            _measure(here, keuss, operation, callers, options)
            for callers in options.callers or (64, 256)
            for operation in WHAT
        ]
        machine = report.machine(here.client, write_concern="majority", payload_bytes=PAYLOAD_BYTES)
        here.client.drop_database(_database(here))
        here.client.drop_database(f"{_database(here)}_status")
    return {
        "machine": machine,
        "keuss": None if keuss is None else VERSION,
        "settings": {"seconds": options.seconds, "rounds": options.rounds},
        "operations": measured,
        "missed": [f"{one['operation']}, {one['callers']}" for one in measured if one.get("reached") is False],
    }


def _database(here: Place) -> str:
    return f"{here.collection}_keuss"


def _keuss_uri(here: Place) -> str:
    parts = urlsplit(here.uri)
    return urlunsplit(parts._replace(path=f"/{_database(here)}"))


def _measure(
    here: Place, keuss: Keuss | None, operation: str, callers: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure the ways in turn, round by round, so that a disturbance affects all; Keuss right after mongoq."""
    ways = ("mongoq", *(["keuss"] if keuss else []), *OTHERS, *(THREADS if options.threads else ()))
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(options.rounds):
        for way, series in rates.items():
            if way in THREADS:
                rate = threads_rate(here, operation, callers, options.seconds, shared=THREADS[way])
            elif way == "keuss" and keuss is not None:
                items = int(AHEAD * options.seconds * 4_000)
                rate = keuss.rate(
                    _keuss_uri(here), WHAT[operation], callers=callers, seconds=options.seconds, items=items
                )
            else:
                with asyncio.Runner(loop_factory=LOOPS.get(way)) as runner:
                    rate = runner.run(_rate(here, operation, callers, options.seconds, way))
            series.append(rate)
    result: dict[str, Any] = {"operation": operation, "callers": callers}
    for way, series in rates.items():
        result[way] = {"per_second": round(statistics.median(series)), "all": [round(rate) for rate in series]}
    for way, times in {way: _times(rates, "mongoq", way) for way in rates if way != "mongoq"}.items():
        result[f"times_{way}"] = times
    if keuss:
        result |= {f"{way}_times_keuss": _times(rates, way, "keuss") for way in ("uvloop", "bare", "commands")}
        target = TARGETS.get((operation, callers))
        result |= {"target": target, "reached": target is None or result["times_keuss"] >= target}
    report.progress(
        f"{callers:4} callers, {operation:20} "
        + ", ".join(f"{way} {result[way]['per_second']:,}/s" for way in rates)
        + f"; {result['times_bare']} times bare"
        + (
            f", {result['times_keuss']} times Keuss; uvloop {result['uvloop_times_keuss']}, "
            f"bare {result['bare_times_keuss']}, commands {result['commands_times_keuss']}"
            if keuss
            else ""
        )
    )
    return result


def _times(rates: dict[str, list[float]], way: str, other: str) -> float:
    """Return the median over rounds of one way's rate divided by the other's in the same round."""
    return round(statistics.median(one / two for one, two in zip(rates[way], rates[other], strict=True)), 2)


async def _rate(here: Place, operation: str, callers: int, seconds: float, way: str) -> float:
    client: AsyncMongoClient[Any] = AsyncMongoClient(here.uri)
    try:
        async with AsyncBroker(client[here.database][here.collection], group_commit=way != "alone") as broker:
            queue = broker.queue("bench.group", lease=600)
            collection = bare_collection(client, here.database, here.collection)
            bare = Bare(collection, queue.name, to=queue.name, by="bench")
            used = queue if way != "bare" else GroupBare(bare)

            async def push() -> bool:
                await used.push(payload())
                return True

            async def reserve_and_commit() -> bool:
                item = await used.reserve()
                if item is None:
                    raise RuntimeError("the queue ran empty; give fewer --seconds")
                await used.commit(item)
                return True

            await queue.purge()
            if way == "commands" and operation == "push":
                return await pushes_rate(bare, callers, seconds)
            if operation == "push":
                return await _loop_rate(push, callers, seconds)
            for _ in range(max(int(seconds * 20_000 * AHEAD) // 10_000, 1)):
                await queue.push_many([payload()] * 10_000)
            if way == "commands":
                return await claims_and_commits_rate(bare, callers, seconds)
            return await _loop_rate(reserve_and_commit, callers, seconds)
    finally:
        await client.close()


async def _loop_rate(step: Step, callers: int, seconds: float) -> float:
    done = 0
    await step()
    began = time.perf_counter()

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < began + seconds:
            await step()
            done += 1

    await asyncio.gather(*(caller() for _ in range(callers)))
    return done / (time.perf_counter() - began)


BENCHMARK = Benchmark(
    "many callers of single operations, with group commit and without, beside Keuss", add_options, run
)
