"""``python -m bench pages``: what pages of the dashboard and reads of the HTTP API cost in a deep collection."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import urlencode

import httpx
import psutil
from bson import ObjectId
from fastapi import FastAPI
from fastapi.routing import APIRoute

from bench import report
from bench.benchmark import Benchmark
from bench.core import positive
from bench.costs import measure_cost
from bench.deep_collection import DEAD_QUEUE, QUEUE, RARE, fill_many_queues
from bench.place import Place, place
from mongoq import Broker
from mongoq.web import create_app

__all__ = ["BENCHMARK", "PARTS"]

PARTS = ("costs", "open")
CACHE_MB = 6_144
STATES = ("live", "ready", "scheduled", "reserved", "expired", "processed")
WHERE = f'{{"city": "{RARE}"}}'
NOT_READ = ("/api/openapi.json", "/events", "/static/{name}")
"""Paths that read nothing, or never end."""
OPENED = ("/", f"/queue?name={QUEUE}", f"/letters?queue={QUEUE}")
"""Pages that are held open, one after the other."""
PUSH_SECONDS = 1.0
"""Seconds between two pushes, so that the numbers of an open page change."""
START_SECONDS = 60.0

Reads = list[tuple[str, str, Mapping[str, Any] | None]]
"""Method, address and body of each read."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; may be repeated")
    parser.add_argument("--items", type=positive, default=5_000_000, help="items, in all; default %(default)s")
    parser.add_argument("--queues", type=positive, default=500, help="queues with items; default %(default)s")
    parser.add_argument("--letters", type=positive, default=1_000_000, help="dead letters; default %(default)s")
    parser.add_argument(
        "--seconds", type=positive, default=60, help="seconds for which each page is open; default %(default)s"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    parts = options.part or PARTS
    with place(options.uri, options.database, "pages", cache_mb=CACHE_MB) as here:
        facts = {"machine": report.machine(here.client)}
        collection = here.client[here.database][here.collection]
        filled = fill_many_queues(collection, options.items, options.queues, options.letters)
        with Broker(collection) as broker:
            for name in collection.distinct("q"):
                broker.queue(name).push({"city": "the last one"})  # it stores what a queue in use has
        report.progress(f"{filled.items}: {filled.seconds:.0f} s")
        result: dict[str, Any] = {"items": filled.items, "fill_seconds": round(filled.seconds, 1)}
        if "costs" in parts:
            result["costs"] = measure_reads(here, filled.known_id)
        if "open" in parts:
            result["open"] = measure_open(here, options.seconds)
    return {**facts, **result}


def measure_reads(here: Place, known: ObjectId) -> list[dict[str, Any]]:
    """Measure each page and each read: the first load, and the next ones, which share its readings."""
    with Broker(here.client[here.database][here.collection]) as broker, asyncio.Runner() as runner:

        def open_client() -> httpx.AsyncClient:
            app = create_app(broker, access=lambda _request: "act")  # a dry run is sent as a change
            transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
            return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60)

        def load(client: httpx.AsyncClient, method: str, path: str, body: Any) -> dict[str, Any]:
            answer = runner.run(client.request(method, path, json=body))
            return {"status": answer.status_code, "bytes": len(answer.content)}

        def load_anew(method: str, path: str, body: Any) -> dict[str, Any]:
            return load(open_client(), method, path, body)

        measured = []
        for method, path, body in list_reads(create_app(broker), known):
            name, kept = f"{method} {path}".replace(str(known), "KNOWN"), open_client()
            if body is not None:
                name += f" {', '.join(key for key in body if key not in ('queue', 'dry_run'))}"
            measured.append(measure_cost(here, name, partial(load_anew, method, path, body)))
            if method == "GET":
                load(kept, method, path, body)
                measured.append(measure_cost(here, f"{name}, again", partial(load, kept, method, path, body)))
        return measured


def list_reads(app: FastAPI, known: ObjectId) -> Reads:
    """Return each page and each GET of an app with the parameters that it needs, more searches, and dry runs."""
    values = {"name": QUEUE, "queue": QUEUE, "id": str(known), "topic-entity": QUEUE, "count": "1000"}
    paths: list[str] = []
    for route in _find_routes(app):
        if not isinstance(route, APIRoute) or "GET" not in (route.methods or ()) or route.path in NOT_READ:
            continue
        if route.path.endswith("/pipeline"):  # its numbers are those of the queues
            continue
        needed = [field.alias for field in route.dependant.query_params if field.field_info.is_required()]
        needed += [name for name in ("count", "topic-entity") if route.path.startswith("/v1/")]
        query = urlencode({name: values[name] for name in needed})
        paths.append(route.path.format(**values) + (f"?{query}" if query else ""))
    for state in STATES:
        paths.append(f"/queue?{urlencode({'name': QUEUE, 'state': state})}")
        paths.append(f"/api/items?{urlencode({'queue': QUEUE, 'state': state, 'limit': 1000})}")
    paths.append(f"/queue?{urlencode({'name': QUEUE, 'where': WHERE})}")
    paths.append(f"/letters?{urlencode({'queue': QUEUE, 'reason': RARE})}")
    for path in ("/api/items", "/api/history", "/api/letters"):
        paths.append(f"{path}?{urlencode({'queue': QUEUE, 'where': WHERE})}")
    paths.append(f"/api/letters?{urlencode({'queue': QUEUE, 'reason': RARE})}")
    return [("GET", path, None) for path in paths] + list(_dry_runs())


def _find_routes(router: Any) -> Iterator[Any]:
    """Yield the routes of an app or a router; later versions of FastAPI keep those of a part in the part."""
    for route in router.routes:
        part = getattr(route, "original_router", None)
        yield from (route,) if part is None else _find_routes(part)


def _dry_runs() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    filter = {"city": RARE}
    for more in ({}, {"where": filter}):
        for path in ("/api/letters/replay", "/api/letters/drop", "/api/items/purge"):
            yield "POST", path, {"queue": DEAD_QUEUE if "items" in path else QUEUE, "dry_run": True, **more}
    yield "POST", "/api/history/replay", {"queue": QUEUE, "dry_run": True, "limit": 1_000}


def measure_open(here: Place, seconds: int) -> list[dict[str, Any]]:
    """Measure the processors of the server and of the dashboard while a page is open and the numbers change."""
    server = psutil.Process(here.client.admin.command("serverStatus")["pid"])
    with _serve(here) as (address, dashboard), _pushes(here):
        measured = []
        for path in ("", *OPENED):
            loads = 0
            before, started = (_busy(server), _busy(dashboard)), time.monotonic()
            if path:
                loads = _visit(address, path, started + seconds)
            else:
                time.sleep(seconds)
            passed = time.monotonic() - started
            after = _busy(server), _busy(dashboard)
            shares = [round(100 * (late - early) / passed, 2) for early, late in zip(before, after, strict=True)]
            result = {"page": path or "none", "server_percent": shares[0], "dashboard_percent": shares[1]}
            result |= {"loads": loads, "seconds": round(passed, 1), "load": round(os.getloadavg()[0], 1)}
            report.progress(str(result))
            measured.append(result)
        return measured


def _busy(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def _serve(here: Place) -> Iterator[tuple[str, psutil.Process]]:
    """Start the dashboard in a process of its own, and return its address and the process."""
    command = [sys.executable, "-m", "mongoq", "dashboard", "--http", "127.0.0.1:0"]
    command += ["--database", here.database, "--collection", here.collection]
    environment = {**os.environ, "MONGOQ_URI": here.uri}
    started = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert started.stderr is not None
    try:
        line = next(line for line in started.stderr if " served at " in line)
        threading.Thread(target=started.stderr.read, daemon=True).start()
        yield line.rpartition(" ")[2].strip().rstrip("/"), psutil.Process(started.pid)
    finally:
        started.terminate()
        started.wait(START_SECONDS)


@contextmanager
def _pushes(here: Place) -> Iterator[None]:
    """Push an item again and again meanwhile."""
    ended = threading.Event()

    def push() -> None:
        with Broker(here.client[here.database][here.collection]) as broker:
            queue = broker.queue("queue-000")
            while not ended.wait(PUSH_SECONDS):
                queue.push({"city": "a new one"})

    pusher = threading.Thread(target=push)
    pusher.start()
    try:
        yield
    finally:
        ended.set()
        pusher.join()


def _visit(address: str, path: str, ends: float) -> int:
    """Hold a page open as its script does, and return how often it was loaded."""
    loads, seen = 0, ""
    with httpx.Client(base_url=address, timeout=60) as client:

        def load() -> None:
            nonlocal loads
            client.get(path, headers={"Accept": "text/html"}).raise_for_status()
            loads += 1

        load()
        while time.monotonic() < ends:
            headers = {"Last-Event-ID": seen} if seen else {}
            with suppress(httpx.ReadTimeout), client.stream("GET", "/events", headers=headers) as stream:
                for line in stream.iter_lines():
                    if line.startswith("id: "):
                        seen = line.removeprefix("id: ")
                    if line == "event: changed":
                        load()
            time.sleep(1)  # as the first event of a stream says
    return loads


BENCHMARK = Benchmark("costs of pages and of the HTTP API: documents examined, and processors", add_options, run)
