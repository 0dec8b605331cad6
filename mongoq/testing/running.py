"""Runs of virtual consumers, as generators that plain and asynchronous workers drive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from mongoq.aio import AsyncQueue
from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import count
from mongoq.pipeline.pipeline import Pipeline
from mongoq.pipeline.run.consumers import machinery
from mongoq.sync import Queue
from mongoq.testing.loop import PrivateLoop
from mongoq.testing.server import VirtualServer
from mongoq.testing.station import NeverIdle, Result, Steps, VirtualStation
from mongoq.worker import AsyncWorker, Worker
from mongoq.worker.consumer import Consumer

__all__ = ["adopt_consumers", "driven", "run_steps_async", "until_idle", "up_to"]


def adopt_consumers(production: Any, server: VirtualServer, broker: Any) -> dict[str, Consumer]:
    """Return the consumers of a production worker or a pipeline, bound to the queues of the same names here."""
    if isinstance(production, Pipeline):
        production.check()
        _check_sources(production)
        return _of_stages(machinery(production.graph, broker, coroutines=True)[0])
    if not isinstance(production, Worker | AsyncWorker):
        raise ArgumentInvalid("production", f"a Worker, an AsyncWorker or a Pipeline, not {type(production).__name__}")
    return {
        name: replace(one, queue=Queue(server.driver, server.bound(one.queue._context)))
        for name, one in production._consumers.items()
    }


def _check_sources(pipeline: Pipeline) -> None:
    sources = [f"source {source.name!r}" for source in pipeline.graph.sources]
    if sources:
        hint = "call the generator in the test, and push what it yields to a pipeline without"
        problem = f"pipeline {pipeline.name!r} has {', '.join(sources)}, which needs a server with transactions; {hint}"
        raise ArgumentInvalid("production", problem)


def _of_stages(own: Iterable[Consumer]) -> dict[str, Consumer]:
    """Return consumers by queue; a second consumer of a queue has the key of queue and stage."""
    found: dict[str, Consumer] = {}
    for one in own:
        found[one.name if one.name not in found else f"{one.name} ({one.stage})"] = one
    return found


def up_to(n: int | None, queue: Any, consumers: Mapping[str, Consumer], server: VirtualServer) -> Steps:
    """Run up to ``n`` items of a queue, or a batch."""
    name = queue.name if isinstance(queue, Queue | AsyncQueue) else queue
    if name not in consumers:
        there = ", ".join(map(repr, consumers)) or "none"
        raise ArgumentInvalid("queue", f"{name!r} has no consumer in this worker; there is {there}")
    return (yield from VirtualStation(consumers[name], server).steps(n))


def until_idle(limit: Any, consumers: Mapping[str, Consumer], server: VirtualServer) -> Steps:
    """Run queue by queue, and again from the first as long as an item has run."""
    most = count(limit, "limit")
    stations = [VirtualStation(one, server) for one in consumers.values()]
    results: list[Result] = []
    runs = before = 0
    while True:
        for station in stations:
            # Each queue until it is empty, so that results come in an order that tests can rely on.
            while came := (yield from station.steps(None)):
                results += came
                runs += 1
                if runs > most:
                    raise NeverIdle(most, results)
        if runs == before:
            return results
        before = runs


def driven(steps: Steps, loop: PrivateLoop) -> list[Result]:
    """Run all steps in a plain test."""
    try:
        coroutine = next(steps)
        while True:
            try:
                reply = loop.run(coroutine)
            except BaseException as error:
                coroutine = steps.throw(error)
            else:
                coroutine = steps.send(reply)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def run_steps_async(steps: Steps) -> list[Result]:
    """Run all steps in a test that runs in an event loop; a cancelled test releases its running items."""
    try:
        coroutine = next(steps)
        while True:
            try:
                reply = await coroutine
            except BaseException as error:
                # A handler may raise CancelledError by itself; that fails its run and does not end the test.
                if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                    steps.close()
                    raise
                coroutine = steps.throw(error)
            else:
                coroutine = steps.send(reply)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _is_cancelled() -> bool:
    """Return whether the test is cancelled, and not only the handler by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
