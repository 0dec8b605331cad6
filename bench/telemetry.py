"""``python -m bench telemetry``: workers without telemetry, with it and without an SDK, and with an SDK.

One broker of one process is instrumented in all ways in turn, and a worker empties a queue each time. The rounds are
short, so that a disturbance of the machine affects all ways.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import product
from typing import Any

from pymongo import AsyncMongoClient, MongoClient

from bench import report
from bench.benchmark import Benchmark
from bench.drain import CONCURRENCY, QUEUE, deletes
from bench.measure import Spread
from bench.operations import PAYLOAD_BYTES, payload
from bench.place import Place, place
from bench.watched import Watched
from mongoq import AsyncBroker, AsyncWorker, Broker, Worker

__all__ = ["BENCHMARK"]

SHELLS = ("threads", "asyncio")
REFERENCE = "off"
"""What the others are compared with."""
TARGET = 1.03
"""Processor time beside ``off``, at most, of the ways that record nothing."""
WAIT_SECONDS = 0.001
"""What a handler that asks another service may wait."""
COUNTED_ROUNDS = 3
"""Rounds in which calls are counted, after those in which time is measured: counting takes time."""
WARM_UP = 1
"""Rounds that are not counted."""
HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
"""Headers of all items, as of a producer with telemetry."""


# --- ways ----------------------------------------------------------------------------------------


def _instrument(broker: Any, **options: Any) -> None:
    import mongoq.telemetry  # imported here: the first rounds without telemetry have not loaded it

    mongoq.telemetry.instrument(broker, **options)


def _instrument_with_variable(broker: Any) -> None:
    _instrument(broker, context_variables=[ContextVar[str]("tenant")])


def _instrument_with_sdk(broker: Any) -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    _instrument(broker, tracer_provider=tracers, meter_provider=meters)


WAYS: dict[str, Callable[[Any], None]] = {
    "off": lambda broker: None,
    "off, again": lambda broker: None,
    "no SDK": _instrument,
    "no SDK, a context variable": _instrument_with_variable,
    "SDK in memory": _instrument_with_sdk,
}
"""What is done with the broker before the worker begins."""
TARGETS = {"no SDK": TARGET}


def _nothing(_: Any) -> None:
    pass


async def _nothing_aio(_: Any) -> None:
    pass


def _wait(_: Any) -> None:
    time.sleep(WAIT_SECONDS)


async def _wait_aio(_: Any) -> None:
    await asyncio.sleep(WAIT_SECONDS)


HANDLERS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "nothing": (_nothing, _nothing_aio),
    "waits 1 ms": (_wait, _wait_aio),
}
"""Handlers: for threads, and for asyncio."""


# --- measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """The result of one worker: items a second, and microseconds of the processor for an item."""

    per_second: float
    processor_us: float


@dataclass(frozen=True, slots=True)
class Subject:
    """A broker, and a function that runs a new worker on it until the queue is empty."""

    broker: Any
    run: Callable[[], None]
    settled: Watched


@contextmanager
def _open(here: Place, name: str, shell: str, handler: str) -> Iterator[Subject]:
    settled, (plain, coroutine) = Watched(deletes), HANDLERS[handler]
    if shell == "threads":
        client: MongoClient[Any] = MongoClient(here.uri, event_listeners=[settled])
        with client, Broker(client[here.database][name]) as broker:

            def run() -> None:
                worker = Worker(broker)
                worker.consumer(QUEUE, concurrency=CONCURRENCY)(plain)
                worker.run(drain=True)

            yield Subject(broker, run, settled)
        return
    with asyncio.Runner() as runner:
        own: AsyncMongoClient[Any] = AsyncMongoClient(here.uri, event_listeners=[settled])
        aio = AsyncBroker(own[here.database][name])

        async def run_aio() -> None:
            worker = AsyncWorker(aio)
            worker.consumer(QUEUE, concurrency=CONCURRENCY)(coroutine)
            await worker.run(drain=True)

        try:
            yield Subject(aio, lambda: runner.run(run_aio()), settled)
        finally:
            runner.run(aio.close())
            runner.run(own.close())


def _prepare(subject: Subject, way: str) -> None:
    subject.broker._driver.observer = None
    WAYS[way](subject.broker)
    gc.collect()


def _count_calls(subject: Subject, way: str) -> float:
    """Return the calls of Python functions for an item: they do not depend on what else the machine does."""
    _prepare(subject, way)
    done, calls = subject.settled.done, itertools.count()

    def note(_frame: Any, event: str, _argument: Any) -> None:
        if event == "call":
            next(calls)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        subject.run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return next(calls) / (subject.settled.done - done)


def _measure(subject: Subject, way: str) -> Block:
    _prepare(subject, way)
    done, began, processor = subject.settled.done, time.monotonic(), time.process_time()
    subject.run()
    processor = time.process_time() - processor
    number = subject.settled.done - done
    return Block(number / (subject.settled.last - began), processor / number * 1e6)


def _interleave(
    here: Place, shell: str, handler: str, *, items: int, rounds: int
) -> tuple[dict[str, list[Block]], dict[str, list[float]]]:
    """Return the blocks of each way, and the calls of Python functions for an item."""
    name, calls = f"{here.collection}_full", {way: list[float]() for way in WAYS}
    blocks: dict[str, list[Block]] = {way: [] for way in WAYS}
    with Broker(here.client[here.database][name]) as producer, _open(here, name, shell, handler) as subject:
        queue = producer.queue(QUEUE)
        payloads = [payload(number) for number in range(items)]
        for turn in range(-WARM_UP, rounds):
            for way in reversed(WAYS) if turn % 2 else WAYS:
                queue.push_many(payloads, headers=HEADERS)
                block = _measure(subject, way)
                if turn >= 0:
                    blocks[way].append(block)
        for _, way in product(range(COUNTED_ROUNDS), WAYS):
            queue.push_many(payloads, headers=HEADERS)
            calls[way].append(_count_calls(subject, way))
    return blocks, calls


# --- results -------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--items", type=int, default=4_000, help="items for empty handlers; default %(default)s")
    parser.add_argument("--waiting-items", type=int, default=1_500, help="for those that wait; default %(default)s")
    parser.add_argument("--rounds", type=int, default=40, help="blocks of each way in turn; default %(default)s")
    parser.add_argument("--shell", choices=SHELLS, action="append", help="only this one; may be repeated")
    parser.add_argument("--handler", choices=list(HANDLERS), action="append", help="only this one; may be repeated")


def run(options: argparse.Namespace) -> dict[str, Any]:
    items = {"nothing": options.items, "waits 1 ms": options.waiting_items}
    workers: dict[str, Any] = {}
    with place(options.uri, options.database, "telemetry", memory=True) as here:
        machine = report.machine(here.client, write_concern="majority", payload_bytes=PAYLOAD_BYTES)
        for shell, handler in product(options.shell or SHELLS, options.handler or HANDLERS):
            blocks, calls = _interleave(here, shell, handler, items=items[handler], rounds=options.rounds)
            title = f"{shell}, {handler}"
            workers[title] = {way: _result(way, blocks, calls[way]) for way in WAYS}
            for way, each in workers[title].items():
                report.progress(_line(title, way, each))
        machine["load_average_at_end"] = report.machine(here.client)["load_average"]
    missed = [f"{title}: {way}" for title, ways in workers.items() for way, each in ways.items() if not each["reached"]]
    settings = {"items": items, "rounds": options.rounds, "concurrency": CONCURRENCY}
    return {"machine": machine, "settings": settings, "workers": workers, "missed": missed}


def _result(way: str, blocks: Mapping[str, Sequence[Block]], calls: Sequence[float]) -> dict[str, Any]:
    pairs = list(zip(blocks[way], blocks[REFERENCE], strict=True))
    processor = Spread.of([own.processor_us / other.processor_us for own, other in pairs])
    target = TARGETS.get(way)
    return {
        "per_second": report.spread(Spread.of([own.per_second for own, _ in pairs])),
        "processor_us": report.spread(Spread.of([own.processor_us for own, _ in pairs])),
        "more_processor_us": report.spread(Spread.of([own.processor_us - other.processor_us for own, other in pairs])),
        "rate_ratio": report.spread(Spread.of([own.per_second / other.per_second for own, other in pairs])),
        "processor_ratio": report.spread(processor),
        "calls": [round(number, 1) for number in calls],
        "target": target,
        "reached": target is None or processor.median <= target,
    }


def _line(title: str, way: str, result: dict[str, Any]) -> str:
    ratio, rate = result["processor_ratio"], result["rate_ratio"]
    return (
        f"{title:22} {way:28} {result['per_second']['median']:8,.0f}/s {result['processor_us']['median']:6.1f} µs; "
        f"processor {ratio['median']:.3f} ± {ratio['error']:.3f}, rate {rate['median']:.3f} ± {rate['error']:.3f}, "
        f"{min(result['calls']):.1f} calls"
    )


BENCHMARK = Benchmark("workers without telemetry, without an SDK, and with one", add_options, run)
