"""``python -m examples.trace``: sends a flight through threads, asyncio and Spark, and draws its trace."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from opentelemetry.trace import format_trace_id

import mongoq
import mongoq.telemetry
from examples.flights.spark import shared_session, what_is_missing
from examples.servers import server
from examples.trace.telemetry import SPAN_FILE, configure, provider, tracer
from examples.trace.waterfall import draw, read_spans

OK, UNUSABLE = 0, 2
PICTURE = Path("docs/img/trace-flight.svg")
COLLECTION = "trace"
FLIGHTS_SECONDS = 180.0
"""Seconds that a flight may take; Spark takes most of it, to start."""
FLIGHT = {"tail": "N14228", "from": "EWR", "to": "IAH"}


class WeatherUnavailable(Exception):
    """The weather service is not there at the first call."""


def make_pipeline(landed: Callable[[int], object], *, failures: int) -> mongoq.Pipeline:
    """Return four stages, for three engines; the weather of the second flight fails so many times."""
    flights = mongoq.Pipeline("flights", errors="flights.errors")
    left = [failures]

    @flights.stage("flights.new", to="flights.checked")
    def check(flight: Any) -> Any:
        with tracer("threads").start_as_current_span("look up plane"):
            time.sleep(0.03)
        return {**flight, "seats": 149}

    @flights.stage("flights.checked", to="flights.weather", retry=mongoq.Fixed(0.1))
    async def weather(flight: Any) -> Any:
        with tracer("asyncio").start_as_current_span("GET weather"):
            await asyncio.sleep(0.05)
            if left[0] and flight["number"] == 1:
                left[0] -= 1
                raise WeatherUnavailable
        return {**flight, "visibility": 10.0}

    @flights.stage("flights.weather", to="flights.rated")
    def rate(flight: Any) -> Any:
        from examples.trace import telemetry  # of the executor

        with telemetry.tracer("Spark").start_as_current_span("score model"):
            time.sleep(0.06)
        return {**flight, "delay": 7}

    @flights.sink("flights.rated")
    def announce(flight: Any) -> None:
        with tracer("threads").start_as_current_span("send notice"):
            time.sleep(0.02)
        landed(flight["number"])

    return flights


async def fly(spark: Any, uri: str) -> str:
    """Send two flights through the pipeline, and return the trace id of the second: the first one warms Spark up."""
    loop, landed = asyncio.get_running_loop(), asyncio.Queue[int]()
    pipeline = make_pipeline(lambda number: loop.call_soon_threadsafe(landed.put_nowait, number), failures=1)
    mongoq.telemetry.instrument(pipeline, setup=configure)
    with ExitStack() as stack:
        broker = stack.enter_context(mongoq.connect(uri, collection=COLLECTION))
        web = stack.enter_context(mongoq.connect(uri, collection=COLLECTION))
        mongoq.telemetry.instrument(broker, tracer_provider=provider("threads"))
        mongoq.telemetry.instrument(web, tracer_provider=provider("web"))
        async with mongoq.connect_async(uri, collection=COLLECTION) as own:
            mongoq.telemetry.instrument(own, tracer_provider=provider("asyncio"))
            async with pipeline.start_async(own, stages=["weather"], signals=False):
                stack.enter_context(pipeline.start(broker, stages=["check", "announce"], signals=False))
                options: dict[str, Any] = {"collection": COLLECTION, "stages": ["rate"], "signals": False}
                run = await asyncio.to_thread(pipeline.run_on_spark, spark, uri, **options)
                stack.enter_context(run)
                trace_id = ""
                for number in range(2):
                    with tracer("web").start_as_current_span("POST /flights") as span:
                        web.queue("flights.new").push({**FLIGHT, "number": number})
                    trace_id = f"0x{format_trace_id(span.get_span_context().trace_id)}"
                    await asyncio.wait_for(landed.get(), FLIGHTS_SECONDS)
                await asyncio.to_thread(stack.close)
    return trace_id


def main() -> int:
    """Draw the trace, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.trace", description="Draw the trace of a flight.")
    logging.getLogger("mongoq").setLevel(logging.ERROR)  # the failure that is to be seen is in the picture
    parser.add_argument("--uri", default=os.environ.get("MONGOQ_URI"), help="a MongoDB; default a private one")
    parser.add_argument("--out", type=Path, default=PICTURE, help="where the picture goes; default %(default)s")
    options = parser.parse_args()
    if missing := what_is_missing():
        print(missing, file=sys.stderr)
        return UNUSABLE
    with TemporaryDirectory(prefix="trace-") as folder:
        path = Path(folder) / "spans"
        os.environ[SPAN_FILE] = str(path)  # before Spark begins: its processes inherit it
        with server(options.uri) as uri, shared_session() as spark:
            trace_id = asyncio.run(fly(spark.session(), uri))
        spans = read_spans(path.read_text(encoding="utf-8").splitlines(), trace_id)
    options.out.write_text(draw(spans, "One trace of a flight through threads, asyncio and Spark"), encoding="utf-8")
    print(f"{options.out}: {len(spans)} spans of {len({span.service for span in spans})} services")
    return OK


if __name__ == "__main__":
    sys.exit(main())
