"""``python -m bench.telemetry_drain SHELL HANDLER TELEMETRY URI DATABASE COLLECTION``: a worker empties a queue.

It prints how many items were deleted, its start, the time of the last delete, and the processor time in between.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from bench.drain import CONCURRENCY, QUEUE, Drain, begin
from mongoq import AsyncBroker, AsyncWorker, Broker, Worker

__all__ = ["HANDLERS", "TELEMETRY"]

WAIT_SECONDS = 0.001
"""What a handler that asks another service may wait."""


def _instrument(broker: Any, **options: Any) -> None:
    import mongoq.telemetry  # imported here: without telemetry no process has it

    mongoq.telemetry.instrument(broker, **options)


def _no_sdk(broker: Any) -> None:
    _instrument(broker)


def _variables(broker: Any) -> None:
    _instrument(broker, context_variables=[ContextVar[str]("tenant")])


def _sdk(broker: Any) -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    _instrument(broker, tracer_provider=tracers, meter_provider=MeterProvider([InMemoryMetricReader()]))


TELEMETRY: dict[str, Callable[[Any], None]] = {
    "off": lambda broker: None,
    "off, again": lambda broker: None,
    "no SDK": _no_sdk,
    "no SDK, a context variable": _variables,
    "SDK in memory": _sdk,
}
"""What is done with the broker before the worker begins."""


def _nothing(_: Any) -> None:
    pass


async def _nothing_aio(_: Any) -> None:
    pass


def _wait(_: Any) -> None:
    time.sleep(WAIT_SECONDS)


async def _wait_aio(_: Any) -> None:
    await asyncio.sleep(WAIT_SECONDS)


HANDLERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "nothing": (_nothing, _nothing_aio),
    "waits 1 ms": (_wait, _wait_aio),
}
"""Handlers: for threads, and for asyncio."""


def _threads(drain: Drain, handler: Any, prepare: Callable[[Any], None]) -> tuple[float, float]:
    with drain.client() as client, Broker(drain.collection(client)) as broker:
        prepare(broker)
        worker = Worker(broker)
        worker.consumer(QUEUE, concurrency=CONCURRENCY)(handler)
        broker.ping()
        began, processor = begin(), time.process_time()
        worker.run(drain=True)
        return began, time.process_time() - processor


def _aio(drain: Drain, handler: Any, prepare: Callable[[Any], None]) -> tuple[float, float]:
    async def run() -> tuple[float, float]:
        async with drain.client_aio() as client, AsyncBroker(drain.collection(client)) as broker:
            prepare(broker)
            worker = AsyncWorker(broker)
            worker.consumer(QUEUE, concurrency=CONCURRENCY)(handler)
            await broker.ping()
            began, processor = begin(), time.process_time()
            await worker.run(drain=True)
            return began, time.process_time() - processor

    return asyncio.run(run())


def main() -> None:
    shell, handler, telemetry, uri, database, collection = sys.argv[1:]
    drain = Drain(uri, database, collection)
    plain, coroutine = HANDLERS[handler]
    prepare = TELEMETRY[telemetry]
    began, processor = _threads(drain, plain, prepare) if shell == "threads" else _aio(drain, coroutine, prepare)
    print(json.dumps({**drain.told(began), "processor": processor}))


if __name__ == "__main__":
    main()
